"""A campaign of its own for a test: a temporary project, and the real Snakemake, Ray and store run on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import kvfrontier
import psutil
import yaml
from kvfrontier.plan.disk import PlanIndex, read_index
from kvfrontier.store.rows import read_table

CHECKOUT = Path(kvfrontier.__file__).parents[2]
PLUGINS = Path(__file__).parent / "plugins"
SHAPE = {
    "layers": 4, "q_heads": 8, "kv_heads": 2, "head_dim": 64, "hidden": 512, "vocab": 1000, "max_positions": 8192,
    "parameters": 50_000_000,
}  # fmt: skip
DEVICE = {"kind": "cpu", "memory_bytes": 16 * 10**9, "memory_bytes_per_s": 2e10, "flops_per_s": 1e11}


class Workspace:
    """Project with one campaign `trial` on the simulator; `axes` are those of the campaign file."""

    profile = "local"

    def __init__(self, root: Path):
        self.root = root
        self.results = root / "results" / "trial"
        self.naps = root / "naps.txt"
        self._write("models.yaml", {"toy": {"shape": SHAPE}})
        self._write("devices.yaml", {"fake": DEVICE})
        # Puts the plugins of the tests on the search path in every process that the test starts.
        site = f"import kvfrontier.workloads\nkvfrontier.workloads.__path__.append({str(PLUGINS)!r})\n"
        (root / "sitecustomize.py").write_text(site)

    def campaign(self, axes: dict, **settings: object) -> None:
        """Write config/campaigns/trial.yaml."""
        common = {"model": ["toy"], "engine": ["simulator"], "strategy": ["full"]}
        self._write("campaigns/trial.yaml", {"device": "fake", "axes": {**common, **axes}, **settings})

    def _write(self, name: str, content: dict) -> None:
        path = self.root / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KVFRONTIER_ROOT": str(self.root),
            "KVFRONTIER_NAPS": str(self.naps),
            "KVFRONTIER_WORKERS": "2",
            "PYTHONPATH": f"{self.root}:{CHECKOUT / 'workflow'}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def command(self, *arguments: str, seconds: int = 150) -> list[str]:
        """A Snakemake call on this project that cannot hang for ever."""
        snakefile, profile = str(CHECKOUT / "Snakefile"), str(CHECKOUT / "profiles" / self.profile)
        call = ["snakemake", "-s", snakefile, "-d", str(self.root), "--profile", profile]
        return ["timeout", "-k", "10", str(seconds), *call, *arguments, "--config", "campaign=trial"]

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end; output and errors come together in `stdout`."""
        return self.run(*self.command(*arguments))

    def measure_all(self) -> subprocess.CompletedProcess[str]:
        """Everything but the report, which costs time that most tests have no use for."""
        return self.snakemake("results/trial/trial.duckdb")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, cwd=self.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Snakemake in a session of its own; its output goes to output.txt."""
        output = (self.root / "output.txt").open("w")
        command = self.command(*arguments)[4:]  # without `timeout`: the test kills it
        return subprocess.Popen(command, env=self.environment, cwd=self.root, stdout=output, stderr=output, text=True,
                                stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip

    def hold_after(self, starts: int) -> None:
        """From so many naps on, those that start wait for `let_go`: the run stands still there, however fast it is."""
        self.naps.with_suffix(".limit").write_text(str(starts))

    def let_go(self) -> None:
        """End what `hold_after` began."""
        self.naps.with_suffix(".limit").unlink(missing_ok=True)

    def index(self) -> PlanIndex:
        return read_index(self.results)

    def naps_taken(self) -> Counter[str]:
        """How often each nap was started."""
        return Counter(self.naps.read_text().splitlines() if self.naps.exists() else ())

    def statuses(self) -> Counter[tuple[str, int]]:
        """Stored rows by status and attempt."""
        table, _ = read_table(self.results, ["status", "attempt"])
        return Counter((row["status"], row["attempt"]) for row in table.to_pylist())

    def processes(self, text: str) -> list[int]:
        """Processes of this workspace whose command line contains `text`."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (folder / "environ").read_bytes() if text in words else b""
            except OSError:
                continue
            if f"KVFRONTIER_NAPS={self.naps}".encode() in environment.split(b"\0"):
                found.append(int(folder.name))
        return found

    def driver(self) -> int:
        """The oldest `kvfrontier measure` that is no shell: what it forks looks like it, too, for a moment."""
        found = {}
        for pid in self.processes("bin/kvfrontier measure"):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.name() != "bash":
                    found[pid] = process.create_time()
        return min(found, key=found.__getitem__)


def wait_until(is_true: Callable[[], object], seconds: float, what: str) -> None:
    """Poll; fails the test with `what` when it takes too long."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)
