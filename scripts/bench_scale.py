"""A campaign of 100,000 quick cells, from the plan to the answer, next to one Snakemake job per cell.

Prints `name=value` lines; how far it is goes to stderr. Called by `scripts/bench scale`; works in a temporary folder,
on cells that cost next to nothing (tests/plugins/tick.py), so that what is measured is everything around them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from bench_workflow import CHECKOUT, DEVICE, PR_SET_CHILD_SUBREAPER, SHAPE, Cost, cost_of
from kvfrontier.store.newest import Newest
from kvfrontier.units import format_seconds

PLUGINS = CHECKOUT / "tests" / "plugins"
STRATEGIES = 100
CELLS_IN_SHARD = 5000
SAY_EVERY_S = 10.0
QUERIES = {
    "summary": "SELECT metric, count(*) AS rows, median(median) AS middle, max(cv) AS cv FROM summary GROUP BY ALL",
    "frontier": "SELECT * FROM frontier WHERE on_frontier ORDER BY model, workload_label, quality_metric, cost",
}


class Campaign:
    """A temporary project with the campaign `bench` of `cells` cells, a multiple of 100."""

    def __init__(self, root: Path, cells: int, cells_in_shard: int = CELLS_IN_SHARD):
        self.root, self.cells = root, cells
        self.results = root / "results" / "bench"
        self._newest = Newest(self.results)
        self._in_shard = cells_in_shard
        self._write("models.yaml", {name: {"shape": SHAPE} for name in ("toy-a", "toy-b")})
        self._write("devices.yaml", {"fake": DEVICE})
        # Puts the plugin on the search path of every process.
        (root / "sitecustomize.py").write_text(
            f"import kvfrontier.workloads\nkvfrontier.workloads.__path__.append({str(PLUGINS)!r})\n"
        )
        self._path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        self.write([round(number / 50, 2) for number in range(1, 51)])

    def write(self, budgets: list[float]) -> None:
        """The campaign file; the budgets are those of streaming_llm, one in a hundred of all strategies each."""
        left = self.cells // STRATEGIES
        counts = []
        for most in (2, 2, 10):  # models, batch sizes, contexts; the seeds take the rest
            counts.append(math.gcd(left, most))
            left //= counts[-1]
        axes = {
            "model": ["toy-a", "toy-b"][: counts[0]],
            "engine": ["simulator"],
            "strategy": [
                "full",
                {"name": "streaming_llm", "budget": budgets},
                {"name": "h2o", "budget": [round(number / 50, 2) for number in range(1, 50)]},
            ],
            "workload": [{"name": "tick"}],
            "workload.batch_size": [1, 4][: counts[1]],
            "workload.context_tokens": [1000 * number for number in range(1, counts[2] + 1)],
            "seed": list(range(left)),
        }
        shard = {"max_cells": self._in_shard}
        self._write("campaigns/bench.yaml", {"device": "fake", "axes": axes, "shard": shard})

    def kvfrontier(self, *arguments: str) -> tuple[Cost, str]:
        """Cost and output of one command."""
        return self._run(["kvfrontier", arguments[0], "bench", *arguments[1:]])

    def snakemake(self, *arguments: str) -> tuple[Cost, str]:
        """Cost and output of one Snakemake call."""
        profile = str(CHECKOUT / "profiles" / "local")
        command = ["snakemake", "-s", str(CHECKOUT / "Snakefile"), "-d", str(self.root), "--profile", profile]
        return self._run([*command, *arguments, "--config", "campaign=bench"])

    def plan(self) -> dict:
        """What `kvfrontier plan --json` says."""
        text = self.kvfrontier("plan", "--json")[1]
        return json.loads(text[text.index("{") :])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Say now and then how many cells are done, and how long the others will take."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event) -> None:
        start_s, before = time.monotonic(), self._done()
        while not ended.wait(SAY_EVERY_S):
            took_s, done = time.monotonic() - start_s, self._done()
            pace_s = took_s / (done - before) if done > before else 0.0
            left = f", about {format_seconds(pace_s * (self.cells - done))} left" if pace_s else ""
            say(f"{done:,} of {self.cells:,} cells after {format_seconds(took_s)}{left}")

    def _done(self) -> int:
        return len(self._newest.read())

    def _run(self, command: list[str]) -> tuple[Cost, str]:
        command = ["env", f"PYTHONPATH={self._path}", *command]
        return cost_of(command, self.root), (self.root / "output.txt").read_text()

    def _write(self, name: str, content: dict) -> None:
        path = self.root / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))


def say(text: str) -> None:
    print(f"bench scale: {text}", file=sys.stderr, flush=True)


def figure(name: str, value: float) -> None:
    print(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}", flush=True)


def figures(name: str, cost: Cost) -> None:
    """Time on the clock and of all cores, memory of the largest process. A busy machine spoils the first."""
    figure(f"{name}_s", cost.wall_s)
    figure(f"{name}_cpu_s", cost.cpu_s)
    figure(f"{name}_mb", cost.peak_bytes / 1e6)


def whole_campaign(campaign: Campaign) -> None:
    """Plan, run, fold, store, ask; nothing to do; one percent changed."""
    cells = campaign.cells
    say(f"planning {cells:,} cells")
    figures(f"plan_{cells}", campaign.kvfrontier("plan")[0])
    say("measuring them (5 ms each and more)")
    with campaign.watched():
        cost, _ = campaign.snakemake("--until", "measure")
    figures(f"run_{cells}", cost)
    figure("overhead_cell_ms", 1000 * cost.cpu_s / cells)  # all of it: Snakemake, drivers, Ray's own processes, workers
    say("building the database")
    figures(f"store_{cells}", campaign.kvfrontier("store")[0])
    for name, sql in QUERIES.items():
        figures(f"{name}_{cells}", campaign.kvfrontier("query", sql)[0])
    say("drawing the report")
    figures(f"report_{cells}", campaign.snakemake()[0])
    disk(campaign)
    cost, text = campaign.snakemake("-n")
    require("Nothing to be done" in text, f"not a no-op:\n{text[-3000:]}")
    figures(f"noop_{cells}", cost)
    figures(f"plan_stored_{cells}", campaign.kvfrontier("plan")[0])
    one_percent(campaign)


def one_percent(campaign: Campaign) -> None:
    """Another value for one budget of a hundred strategies."""
    campaign.write([round(number / 50, 2) for number in range(1, 50)] + [0.99])
    figures(f"changed_1pct_{campaign.cells}", campaign.snakemake("-n")[0])
    plan = campaign.plan()
    require(plan["stored"] + plan["measure"] == campaign.cells, f"cells are lost: {plan}")
    figure("changed_1pct_cells", plan["measure"])
    figure("changed_1pct_jobs", sum(shard["measure"] > 0 for shard in plan["shards"]))
    say("measuring the changed ones")
    figures("changed_1pct_run", campaign.snakemake("--until", "measure")[0])
    require(campaign.plan()["measure"] == 0, "one percent changed: something is left to measure")


def disk(campaign: Campaign) -> None:
    """What the results take, but for the database and the report, which can be made again from them."""
    entries = list(campaign.results.rglob("*"))
    derived = {campaign.results / "bench.duckdb", campaign.results / "report.html"}
    sizes = {path: path.stat().st_blocks * 512 for path in entries}
    figure("disk_cell_bytes", sum(size for path, size in sizes.items() if path not in derived) / campaign.cells)
    figure("database_cell_bytes", sizes[campaign.results / "bench.duckdb"] / campaign.cells)
    figure(f"inodes_{campaign.cells}", len(entries) + 1)


def shards_of_one(campaign: Campaign) -> None:
    """The same package with one Snakemake job per cell: what a whole job costs."""
    campaign.kvfrontier("plan")
    say(f"measuring {campaign.cells} cells, one Snakemake job each")
    with campaign.watched():
        cost, _ = campaign.snakemake("--until", "measure")
    figure("one_cell_shards_cell_ms", 1000 * cost.cpu_s / campaign.cells)


def job_a_cell(root: Path, cells: int) -> None:
    """The classic form, a plain Snakefile with a file a cell: `snakemake -n` when all of them are there."""
    say(f"{cells:,} jobs in a plain Snakefile")
    (root / "Snakefile").write_text(
        f"rule all:\n    input: expand('cells/{{n}}.txt', n=range({cells}))\n"
        "rule cell:\n    output: 'cells/{n}.txt'\n    shell: 'touch {output}'\n"
    )
    command = ["snakemake", "-n", "-q", "all", "--cores", "2"]
    figures(f"per_cell_jobs_missing_{cells}", cost_of(command, root))
    (root / "cells").mkdir()
    for number in range(cells):
        (root / "cells" / f"{number}.txt").touch()
    figures(f"per_cell_jobs_{cells}", cost_of(command, root))


def require(is_true: bool, message: str) -> None:
    if not is_true:
        raise SystemExit(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100_000, help="of the campaign, a multiple of 100")
    parser.add_argument("--jobs", type=int, nargs="*", default=[1_000, 10_000], help="one Snakemake job per cell")
    parser.add_argument("--one-cell-shards", type=int, default=100, help="a multiple of 100; 0: leave it out")
    parser.add_argument("--folder", type=Path, help="where to work [a temporary folder]")
    options = parser.parse_args()
    for name in ("cells", "one_cell_shards"):
        if (cells := getattr(options, name)) % STRATEGIES:
            parser.error(f"--{name.replace('_', '-')}: got {cells}; expected a multiple of {STRATEGIES}")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that orphans are ours to wait for, and counted
    if options.cells:
        with temporary_folder(options.folder) as root:
            whole_campaign(Campaign(root, options.cells))
    if options.one_cell_shards:
        with temporary_folder(options.folder) as root:
            shards_of_one(Campaign(root, options.one_cell_shards, cells_in_shard=1))
    for jobs in options.jobs:
        with temporary_folder(options.folder) as root:
            job_a_cell(root, jobs)


@contextmanager
def temporary_folder(inside: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvf-scale-", dir=inside) as folder:
        yield Path(folder)


if __name__ == "__main__":
    main()
