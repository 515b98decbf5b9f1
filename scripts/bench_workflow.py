"""What running costs beside the measuring: CPU time a cell, and time and memory of a `snakemake -n` with nothing to do.

Prints `name=value` lines. Called by scripts/bench; works in a temporary folder, on a simulated model.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import kvfrontier
import psutil
import yaml
from kvfrontier.plan.disk import PlanIndex, prepare, read_shard
from kvfrontier.plan.project import Project
from kvfrontier.run.outcome import outcome_row
from kvfrontier.run.session import open_campaign
from kvfrontier.store.attempts import Stored
from kvfrontier.store.ledger import write_ledger
from kvfrontier.store.parts import group_of, write_part
from kvfrontier.store.rows import as_table

CHECKOUT = Path(kvfrontier.__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36
ROUNDS = 3
SHAPE = {
    "layers": 4, "q_heads": 8, "kv_heads": 2, "head_dim": 64, "hidden": 512, "vocab": 1000, "max_positions": 8192,
    "parameters": 50_000_000,
}  # fmt: skip
DEVICE = {"kind": "cpu", "memory_bytes": 16 * 10**9, "memory_bytes_per_s": 2e10, "flops_per_s": 1e11}


class Cost(NamedTuple):
    """`peak_bytes`: of the largest process."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


class Watched:
    """CPU seconds of all our descendants, looked at ten times a second.

    What `wait` tells is too little where a process does not wait for its children: those of Ray's raylet took half of
    all CPU time. What is seen here is too little by what a process does between the last look and its end.
    """

    def __init__(self) -> None:
        self._seen: dict[psutil.Process, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """Of all of them together, so far."""
        return sum(self._seen.values())

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    used = process.cpu_times()
                    self._seen[process] = used.user + used.system


def cost_of(command: list[str], root: Path) -> Cost:
    """Run a command and wait for all its descendants, also those that outlive it."""
    environment = {
        **os.environ,
        "KVFRONTIER_ROOT": str(root),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    start_s, cpu_s, peak_kib = time.perf_counter(), 0.0, 0
    with (root / "output.txt").open("w") as output, Watched() as watched:
        process = subprocess.Popen(
            command, env=environment, cwd=root, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        code = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu_s += usage.ru_utime + usage.ru_stime
            peak_kib = max(peak_kib, usage.ru_maxrss)
            if pid == process.pid:
                code = process.returncode = os.waitstatus_to_exitcode(status)
                wall_s = time.perf_counter() - start_s
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}:\n{(root / 'output.txt').read_text()[-3000:]}")
    return Cost(wall_s, max(cpu_s, watched.cpu_s), peak_kib * 1024)


def make_project(root: Path, cells: int) -> PlanIndex:
    """A project with one campaign of quick simulated cells: one, or a multiple of a hundred."""
    axes = {
        "model": ["toy"],
        "engine": ["simulator"],
        "strategy": ["full"],
        "workload": [{"name": "speed", "text": "generated", "output_tokens": 2, "repeats": 1}],
        "workload.batch_size": list(range(1, 11)) if cells > 1 else [1],
        "workload.context_tokens": list(range(16, 26)) if cells > 1 else [16],
        "seed": list(range(max(1, cells // 100))),
    }
    documents = {
        "models.yaml": {"toy": {"shape": SHAPE}},
        "devices.yaml": {"fake": DEVICE},
        "campaigns/bench.yaml": {"device": "fake", "axes": axes, "shard": {"max_cells": 1000}},
    }
    for name, content in documents.items():
        path = root / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    return prepare(Project.at(root), "bench")


def measured_cpu_s(cells: int) -> float:
    """CPU seconds of one `kvfrontier measure` and everything it starts."""
    with tempfile.TemporaryDirectory(prefix="kvf-bench-") as folder:
        root = Path(folder)
        index = make_project(root, cells)
        return cost_of(["kvfrontier", "measure", "bench", index.shards[0].name], root).cpu_s


def overhead(cells: int) -> None:
    """CPU of a shard of `cells` cells less that of a shard of one: what one more costs, all processes together.

    The least of several rounds: on a shared machine the same work takes up to twice the CPU time, and never less.
    """
    rounds = [(measured_cpu_s(1), measured_cpu_s(cells)) for _ in range(ROUNDS)]
    one_s, all_s = map(min, zip(*rounds, strict=True))
    print(f"overhead_cells={cells}")
    print(f"overhead_one_cell_job_cpu_s={one_s:.2f}")
    print(f"overhead_cpu_ms_per_cell={1000 * (all_s - one_s) / (cells - 1):.2f}")


def fill(root: Path, index: PlanIndex) -> None:
    """Write every row through the store's own functions, in bulk instead of one by one, and what follows from them."""
    moment = datetime.now(UTC)
    for shard in index.shards:
        cells = read_shard(index.campaign_dir, shard.name)
        rows = [outcome_row(cell, 1, "ok", started_at=moment, wall_s=0.001) for cell in cells]
        write_part(index.campaign_dir, group_of(shard.name), as_table(*rows))
        names = [cell.fingerprint for cell in cells]
        write_ledger(index.campaign_dir, shard.name, names, dict.fromkeys(names, Stored(1, "ok")))
    os.environ["KVFRONTIER_ROOT"] = str(root)
    files = open_campaign("bench", is_main=True, is_dry=True)
    receipt = index.campaign_dir / "inputs" / "model" / "toy.json"
    for path in (receipt, *(files.campaign_dir / name for name in ("bench.duckdb", "report.html", "verdict.txt"))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}      DUCK")  # what a DuckDB file is known by


def no_op(cells: int) -> None:
    """`snakemake -n` when every cell is stored: once with the plan to be made, then with the plan on disk."""
    with tempfile.TemporaryDirectory(prefix="kvf-bench-") as folder:
        root = Path(folder)
        start_s = time.perf_counter()
        index = make_project(root, cells)
        print(f"plan_{cells}_cells_wall_s={time.perf_counter() - start_s:.2f}")
        fill(root, index)
        profile = str(CHECKOUT / "profiles" / "local")
        command = ["snakemake", "-s", str(CHECKOUT / "Snakefile"), "-d", folder, "--profile", profile, "-n"]
        cost = cost_of([*command, "--config", "campaign=bench"], root)
        if "Nothing to be done" not in (root / "output.txt").read_text():
            raise SystemExit(f"not a no-op:\n{(root / 'output.txt').read_text()}")
        print(f"noop_{cells}_cells_wall_s={cost.wall_s:.2f}")
        print(f"noop_{cells}_cells_cpu_s={cost.cpu_s:.2f}")
        print(f"noop_{cells}_cells_peak_mb={cost.peak_bytes / 1e6:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overhead-cells", type=int, default=1000, help="0: leave this part out")
    parser.add_argument("--no-op-cells", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--quick", action="store_true", help="200 cells for the overhead, 1,000 for doing nothing")
    options = parser.parse_args()
    if options.quick:
        options.overhead_cells, options.no_op_cells = 200, [1_000]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that orphans are ours to wait for, and counted
    if options.overhead_cells:
        overhead(options.overhead_cells)
    for cells in options.no_op_cells:
        no_op(cells)


if __name__ == "__main__":
    main()
