"""The checkout: where its configuration and results are. Found once by the command, then passed on."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

import kvfrontier
from kvfrontier.errors import ConfigError, Problem, Unavailable, did_you_mean
from kvfrontier.plan.document import Document, join_key, read_document, show
from kvfrontier.plan.problems import document_problems
from kvfrontier.plan.shape import NAME_PATTERN, PATTERNS_IN_WORDS, ConfigShape

PARTS = ("model", "strategy_code", "engine_code", "workload_code", "reference_code", "data", "device")
"""Parts of a fingerprint that `fingerprint.ignore` may name, beside `package:<distribution>`."""


def kvfrontier_cache() -> Path:
    """Folder for what is fetched or computed once a user: $KVFRONTIER_CACHE, or kvfrontier under the XDG cache."""
    if os.environ.get("KVFRONTIER_CACHE"):
        return Path(os.environ["KVFRONTIER_CACHE"]).expanduser().absolute()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "kvfrontier"
    except RuntimeError as error:
        raise Unavailable("no home folder is known; set KVFRONTIER_CACHE to a folder for what is fetched") from error


@dataclass(frozen=True)
class Project:
    """A folder that holds `config/`, where its results go, and the settings of config/config.yaml."""

    root: Path
    results: Path
    settings: ConfigShape

    @classmethod
    def find(cls) -> Project:
        """The checkout this package is installed from; KVFRONTIER_ROOT and KVFRONTIER_RESULTS override."""
        root = os.environ.get("KVFRONTIER_ROOT") or Path(kvfrontier.__file__).parents[2]
        return cls.at(Path(root), os.environ.get("KVFRONTIER_RESULTS"))

    @classmethod
    def at(cls, root: Path, results: str | Path | None = None) -> Project:
        """The project in folder `root`; raises ConfigError for a bad config/config.yaml (it may be absent)."""
        root = root.expanduser().resolve()
        if not (root / "config").is_dir():
            hint = "Set KVFRONTIER_ROOT to it."
            raise ConfigError([Problem(str(root), "(folder)", "no folder `config`", "the checkout's root", hint)])
        settings = _read_settings(root)
        try:
            folder = root / Path(results or settings.results).expanduser()
        except RuntimeError:  # `~nobody`
            problem = Problem("config/config.yaml", "results", show(str(results or settings.results)), "a folder")
            raise ConfigError([problem]) from None
        return cls(root, folder, settings)

    def label(self, path: Path) -> str:
        """How messages name a file: relative to the root where it is inside."""
        path = Path(os.path.realpath(path))  # `resolve` raises for a link to itself
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def campaign_files(self) -> list[Path]:
        """All campaign files of the checkout, by name."""
        folder = self.root / "config" / "campaigns"
        return sorted(path for path in folder.glob("*") if path.suffix in (".yaml", ".yml") and path.is_file())

    def campaign_names(self) -> dict[Path, str]:
        """The name each campaign file declares; without one, or unreadable, the file's own."""
        return {path: declared_name(path) for path in self.campaign_files()}

    def campaign_file(self, name_or_path: str | Path | None = None) -> Path:
        """The file of a campaign, by its name or by a path; None is the default of config/config.yaml."""
        wanted = str(name_or_path or self.settings.campaign)
        names = self.campaign_names()
        matches = [path for path, name in names.items() if name == wanted]
        matches = matches or [path for path in names if path.stem == wanted]
        if matches:
            return matches[0]
        if Path(wanted).suffix in (".yaml", ".yml") or os.sep in wanted:
            with suppress(OSError, RuntimeError):  # too long for a name; `~nobody`
                path = Path(wanted).expanduser()
                found = [base for base in (path, self.root / path) if base.is_file()]
                if found:
                    return found[0].resolve()
            raise ConfigError([Problem(wanted, "(campaign)", "no such file", "a campaign file")])
        known = sorted(names.values())
        expected = (
            f"one of {', '.join(known)}, or the path of a YAML file" if known else "a campaign in config/campaigns"
        )
        raise ConfigError(
            [Problem("config/campaigns", "(campaign)", show(wanted), expected, did_you_mean(wanted, known))]
        )

    def campaign_dir(self, name: str) -> Path:
        """Folder of everything a campaign produces. Raises ConfigError for a name that could be another folder's."""
        if not is_name(name):
            raise ConfigError([Problem("(campaign)", "name", show(name), PATTERNS_IN_WORDS[NAME_PATTERN])])
        return self.results / name


def is_name(name: str) -> bool:
    """Whether a campaign may be called so: the name is a folder's, too."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def declared_name(path: Path) -> str:
    """The `name:` of a campaign file, or the file's own name."""
    try:
        name = read_document(path, path.name).data.get("name")
    except ConfigError:  # it is reported when that campaign is planned, and must not stop another one
        name = None
    return name if isinstance(name, str) else path.stem


def _read_settings(root: Path) -> ConfigShape:
    path = root / "config" / "config.yaml"
    if not path.exists():
        return ConfigShape()
    document = read_document(path, "config/config.yaml")
    try:
        settings = ConfigShape.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(document_problems(document, error, ConfigShape)) from None
    problems = _ignore_problems(document, settings.fingerprint.ignore)
    if problems:
        raise ConfigError(problems)
    return settings


def _ignore_problems(document: Document, ignored: list[str]) -> list[Problem]:
    expected = f"one of {', '.join(PARTS)} or `package:<distribution>` (`package:*` for all)"
    return [
        document.problem(join_key("fingerprint.ignore", index), part, expected, did_you_mean(part, PARTS))
        for index, part in enumerate(ignored)
        if part not in PARTS and not part.startswith("package:")
    ]
