"""A campaign under fire: what may never happen to it, whatever is killed, filled up or damaged, and a way to look."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
from kvfrontier.store.rows import read_files, read_table
from workspace import Workspace, wait_until

FAULTS = int(os.environ.get("KVFRONTIER_FAULTS") or 1)
"""So many instants for each kind of victim; 50 for the whole of it (hours)."""
SEED = os.environ.get("KVFRONTIER_FAULT_SEED") or str(random.SystemRandom().randrange(10**6))
"""Which instants. A failure names it; set it to have (about) the same ones again."""
WORKERS = 2
AMONG_CELLS = 0.5
"""Share of the runs whose blows fall while cells are measured, which is the smaller part of a short run."""
CELLS_S = 3.0
GONE_S = 120.0
PATIENCE_S = 900.0
"""Far more than it takes: machines that run tests may have much else to do. How long it took is printed."""
LEFTOVERS = (".*.tmp", "*.partial", ".building-*", ".*.partial")
AXES = {
    "strategy": ["full", {"name": "streaming_llm", "budget": [0.25, 0.5]}],
    "workload": [
        {"name": "nap", "seconds": 0.4},
        {"name": "tick"},
        {"name": "speed", "text": "generated", "context_tokens": 9000},  # too long for the model: the driver's rows
    ],
    "seed": [0, 1, 2, 3, 4],
}


class Trial(Workspace):
    """A workspace whose rows are watched: `check` after each blow, `finish` at the end."""

    def __init__(self, root: Path, axes: dict | None = None, **settings: object):
        super().__init__(root)
        site = root / "sitecustomize.py"
        site.write_text(site.read_text() + (Path(__file__).parent / "crash_point.py").read_text())
        self.campaign(axes or AXES, **settings)
        self.extra: dict[str, str] = {}
        self.sockets = Path(tempfile.mkdtemp(prefix="kf", dir="/tmp"))  # short: Ray's sockets lie in it
        self.kills = 0  # runs that were cut short, or could not store what they had measured
        self.slowest_s = 0.0  # that a run's processes took to be gone
        self.phases: Counter[str] = Counter()
        self._seen: dict[tuple[str, int], str] = {}

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "KVFRONTIER_TMP": str(self.sockets), **self.extra}

    def command(self, *arguments: str, seconds: int = int(PATIENCE_S)) -> list[str]:
        return super().command(*arguments, seconds=seconds)

    def close(self) -> None:
        """End what still runs, remove what is left."""
        for pid in self.processes(""):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes(""), 30, "the processes of the test are dead")
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def find(self, victim: str) -> list[int]:
        """Processes of one kind, by VICTIMS."""
        found = {pid for text in VICTIMS[victim] for pid in self.processes(text)}
        if victim == "worker":
            found -= set(self.processes("raylet/raylet"))  # whose command holds that of its workers
        return sorted(found)

    def phase(self) -> str:
        """What the run is about now, by its processes and files."""
        for command in ("fetch", "store", "report", "check"):
            if self.processes(f"bin/kvfrontier {command}"):
                return command
        if self.find("driver"):
            if self.processes("ray::EngineWorker"):
                return "cells"
            if self.find("raylet"):
                return "Ray's start or end"
            return "fold and ledger" if self._all_stored() else "driver's start"
        if not (self.results / "plan" / "index.json").exists():
            return "plan"
        return "between jobs"

    def _all_stored(self) -> bool:
        return bool(self._seen) and len(self.rows()) == len(self.planned())

    def planned(self) -> list[str]:
        """Fingerprints of the plan."""
        plan = duckdb.sql(f"SELECT fingerprint FROM read_parquet('{self.results}/plan/cells.parquet')").fetchall()
        return [name for (name,) in plan]

    def rows(self) -> dict[tuple[str, int], str]:
        """Each stored (fingerprint, attempt) and all that its row says. Fails where two files say different things."""
        found: dict[tuple[str, int], str] = {}
        tables, damaged = read_files(self.results)
        assert not damaged, f"half a row: {damaged}"
        for row in (row for table in tables for row in table.to_pylist()):
            content = repr(sorted(row.items()))
            assert found.setdefault((row["fingerprint"], row["attempt"]), content) == content, "counted twice"
        return found

    def check(self) -> None:
        """What holds at any time: no row half, lost, changed or measured in vain; whatever is published is whole."""
        rows = self.rows()
        for key, content in self._seen.items():
            assert rows.get(key) == content, f"the row of {key} is {'another one' if key in rows else 'gone'}"
        self._seen |= rows
        table, _ = read_table(self.results, ["cell"])
        naps = sum(json.loads(cell)["workload"]["name"] == "nap" for cell in table.column("cell").to_pylist())
        started = self.naps_taken().total()
        assert started <= naps + WORKERS * self.kills, f"{started} naps for {naps} rows and {self.kills} kills"
        for ledger in (self.results / "ledgers").glob("[!.]*.json"):
            assert json.loads(ledger.read_text())["shard"] == ledger.stem
        if (database := self.results / "trial.duckdb").exists():
            with duckdb.connect(database, read_only=True) as connection:
                connection.execute("SELECT count(*) FROM cells").fetchall()
        if (report := self.results / "report.html").exists():
            assert report.read_text().rstrip().endswith("</html>")

    def vanishes(self) -> None:
        """No process and no folder of Ray is left after a while."""
        since_s = time.monotonic()
        wait_until(lambda: not self.processes(""), GONE_S, "every process of the run has ended")
        self.slowest_s = max(self.slowest_s, time.monotonic() - since_s)
        left = [path.name for path in self.sockets.iterdir()]
        assert not left, f"Ray's folder stays behind: {left}"

    def values(self) -> dict[str, tuple]:
        """cell_id -> status and every value, of the newest attempt: what an undisturbed run must have, too."""
        names = ["cell_id", "attempt", "status", "reason", "measurements"]
        found: dict[str, tuple] = {}
        table, _ = read_table(self.results, names)
        for row in sorted(table.to_pylist(), key=lambda row: row["attempt"]):
            measured = sorted(repr(sorted(value.items())) for value in row["measurements"])
            found[row["cell_id"]] = row["status"], row["reason"], tuple(measured)
        return found

    def published(self) -> list[tuple]:
        """The same of the published database."""
        question = """SELECT cell_id, cells.status, metric, phase, repeat, request, turn, value
            FROM cells LEFT JOIN measurements USING (cell_id) ORDER BY ALL"""
        with duckdb.connect(self.results / "trial.duckdb", read_only=True) as connection:
            return connection.execute(question).fetchall()

    def finish(self, reference: Trial, *targets: str, lives: Lives | None = None) -> None:
        """A run that nothing disturbs ends well, and all that it leaves equals the reference's."""
        hours_ago = time.time() - 7200
        for path in self.leftovers():
            os.utime(path, (hours_ago, hours_ago))
        (lives or Lives()).run(self, *targets)
        self.check()
        self.vanishes()
        self.equals(reference)
        assert not self.leftovers(), "nobody removes what killed writers left"

    def equals(self, reference: Trial) -> None:
        """Value by value."""
        assert self.values() == reference.values()
        assert self.published() == reference.published()

    def logs(self) -> str:
        """What the jobs have logged."""
        return "".join(path.read_text() for path in (self.results / "logs").rglob("*.log"))

    def leftovers(self) -> list[Path]:
        """Files and folders that only a writer that was killed leaves."""
        return [path for pattern in LEFTOVERS for path in self.results.rglob(pattern)]


VICTIMS = {
    "snakemake": ("bin/snakemake -s",),
    "driver": ("bin/kvfrontier measure",),
    "worker": ("ray::EngineWorker", "ray::IDLE", "default_worker.py"),
    "raylet": ("raylet/raylet",),
    "guard": ("kvfrontier.run.guard",),
}


class Lives(dict[str, float]):
    """For about how many seconds each kind of victim lives in a run that nothing cuts short."""

    def run(self, trial: Trial, *targets: str) -> None:
        """A run that must end well, watched."""
        process, seen = trial.start(*targets), {}
        while process.poll() is None:
            for victim in VICTIMS:
                if trial.find(victim):
                    now_s = time.monotonic()
                    seen[victim] = (seen.get(victim, (now_s,))[0], now_s)
            time.sleep(0.2)
        assert process.wait() == 0, (trial.root / "output.txt").read_text()
        for victim, (first_s, last_s) in seen.items():  # a run that has little left to do is no measure
            self[victim] = max(last_s - first_s, 0.8 * self.get(victim, 0.0))


@dataclass
class Executioner:
    """Kills one kind of victim at instants uniform over its life, or from the first cell on."""

    victim: str
    lives: Lives

    def strike(self, trial: Trial, chance: random.Random, *targets: str, blows: int = 1) -> int:
        """Run, and kill one of them at each of some instants; returns how many it were.

        Where the run lived through it, as it does without a worker, it must have ended well.
        """
        process = trial.start(*targets)
        pids, struck, life_s = self._appears(trial, process), 0, self.lives[self.victim]
        if chance.random() < AMONG_CELLS:
            life_s = CELLS_S
            while process.poll() is None and not trial.processes("ray::EngineWorker.run"):
                time.sleep(0.05)
        seen_s = ended_s = time.monotonic()
        for instant_s in sorted(chance.uniform(0, life_s) for _ in range(blows)):
            while process.poll() is None and time.monotonic() < seen_s + instant_s:
                if not pids and self.victim != "worker":  # a worker has successors, also before its first cell
                    break
                time.sleep(min(0.2, max(0.0, seen_s + instant_s - time.monotonic())))
                if pids := self._alive(trial, process):
                    ended_s = time.monotonic()
            phase = trial.phase() if pids else ""
            if pids and (pids := self._alive(trial, process)):
                os.kill(chance.choice(pids), signal.SIGKILL)
                trial.kills += 1
                trial.phases[f"{self.victim}: {phase}"] += 1
                struck += 1
        if life_s == self.lives[self.victim]:
            self.lives[self.victim] = life_s * 1.05 if struck == blows else max(1.0, ended_s - seen_s)
        code = process.wait(PATIENCE_S)
        assert code == 0 or (struck and self.victim != "worker"), (trial.root / "output.txt").read_text()
        return struck

    def _alive(self, trial: Trial, process: subprocess.Popen[str]) -> list[int]:
        if process.poll() is not None:
            return []
        return [process.pid] if self.victim == "snakemake" else trial.find(self.victim)

    def _appears(self, trial: Trial, process: subprocess.Popen[str]) -> list[int]:
        while process.poll() is None:
            if pids := self._alive(trial, process):
                return pids
            time.sleep(0.2)
        return []


def trouble(trial: Trial, what: str, event: str, pattern: str, number: int, *targets: str) -> str | None:
    """Run with trouble at one place (see `crash_point`); returns all that was told, None where nobody came by."""
    token = trial.root / "token"
    token.rmdir() if token.exists() else None
    trial.extra = {"KVFRONTIER_TROUBLE": f"{what}|{event}|{trial.root}/{pattern}|{number}|{token}"}
    try:
        run = trial.snakemake(*targets)
    finally:
        trial.extra = {}
    if not token.exists():
        return None
    trial.kills += 1
    trial.phases[f"{event} {pattern}"] += 1
    assert run.returncode != 0, f"trouble at {pattern} went unnoticed: {run.stdout}"
    return run.stdout + trial.logs()


def trials(folder: Path, **settings: object) -> Iterator[Trial]:
    """Fresh ones without end, each gone when the next is asked for."""
    number = 0
    while True:
        root = folder / str(number)
        root.mkdir(parents=True)
        trial = Trial(root, **settings)
        try:
            yield trial
        finally:
            trial.close()
        number += 1
