"""Workers that hang or eat memory, runs that start at the same instant, and clocks that jump."""

import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from faults import FAULTS, PATIENCE_S, SEED, Trial
from kvfrontier.store.rows import read_table
from workspace import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900 + 60 * FAULTS)]
DATABASE = "results/trial/trial.duckdb"
NOTHING = "Nothing to be done"
MEMORY = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
MEMORY_BYTES = 3 * 2**30
YEAR_S = 365 * 24 * 3600
JUMPS = [YEAR_S, -YEAR_S]


def need(is_there: object, what: str) -> None:
    if not is_there:
        pytest.fail(what) if os.environ.get("CI") else pytest.skip(what)


@pytest.fixture
def trial(tmp_path):
    trials = []

    def make(axes: dict | None = None, **settings: object) -> Trial:
        root = tmp_path / str(len(trials))
        root.mkdir()
        trials.append(Trial(root, axes, **settings))
        return trials[-1]

    yield make
    for made in trials:
        made.close()


def naps(*endings: str, **others: list) -> dict:
    return {"workload": [{"name": "nap", "ending": ending} for ending in endings], **others}


def test_a_worker_that_hangs_gets_a_timeout_row_and_a_successor(trial):
    """In native code, with the interpreter's lock, deaf to SIGTERM. One worker: whoever runs the others is new."""
    space = trial(naps("stuck", "ok", seed=[0, 1, 2]), timeout_s=8, max_attempts=1,
                  constraints=[{"drop": {"workload.ending": "stuck", "seed": {"gt": 0}}}])  # fmt: skip
    space.extra = {"KVFRONTIER_WORKERS": "1"}
    run = space.snakemake(DATABASE)
    assert run.returncode == 0, run.stdout
    space.vanishes()
    assert space.statuses() == {("ok", 1): 3, ("timeout", 1): 1}
    table, _ = read_table(space.results, ["status", "wall_s"])
    took_s = next(row["wall_s"] for row in table.to_pylist() if row["status"] == "timeout")
    assert took_s is None or 8 <= took_s < 90


@pytest.fixture
def little_memory():
    """A cgroup that allows so much, and a command prefix that enters it."""
    name = f"kvfrontier-test-{os.getpid()}"
    for top, limit in zip(MEMORY, ("memory.limit_in_bytes", "memory.max"), strict=True):
        folder = top / name
        try:
            folder.mkdir()
            (folder / limit).write_text(str(MEMORY_BYTES))
        except OSError:
            if folder.exists():
                folder.rmdir()
            continue
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), 60, "the cgroup is empty")  # noqa: B023
        folder.rmdir()
        return
    need(False, "no cgroup with a memory limit can be made here (needs root)")


def test_a_cell_that_eats_all_memory_is_an_oom_row_and_the_others_go_on(trial, little_memory):
    space = trial(naps("hog", "ok", seed=[0, 1, 2, 3]), max_attempts=1,
                  constraints=[{"drop": {"workload.ending": "hog", "seed": {"gt": 0}}}])  # fmt: skip
    plain = space.command
    space.command = lambda *arguments, **settings: [*little_memory, *plain(*arguments, **settings)]
    run = space.snakemake(DATABASE)
    assert run.returncode == 0, run.stdout
    space.vanishes()
    table, _ = read_table(space.results, ["status", "reason", "reason_class"])
    rows = Counter((row["status"], row["reason_class"]) for row in table.to_pylist())
    assert rows == {("ok", None): 4, ("oom", "WorkerOutOfMemory"): 1}, table.to_pylist()
    assert NOTHING in space.snakemake(DATABASE).stdout


def test_many_starts_at_one_instant_one_runs_and_the_others_are_told(trial):
    space = trial(naps("ok", seed=list(range(6))))
    space.hold_after(3)
    starts = min(10, 2 + FAULTS)
    outputs = [space.root / f"output{number}.txt" for number in range(starts)]
    runs = []
    for output in outputs:
        with output.open("w") as file:
            runs.append(
                subprocess.Popen(space.command(DATABASE), env=space.environment, cwd=space.root, stdout=file,
                                 stderr=file, stdin=subprocess.DEVNULL)
            )  # fmt: skip
    wait_until(lambda: sum(run.poll() is None for run in runs) == 1, PATIENCE_S, "all but one have ended")
    wait_until(lambda: space.naps_taken().total() == 5, PATIENCE_S, "the one runs")
    late = space.snakemake(DATABASE)
    space.let_go()
    codes = [run.wait(PATIENCE_S) for run in runs]
    told = [output.read_text() for output in outputs]
    assert codes.count(0) == 1, told
    for text in [late.stdout, *(text for text, code in zip(told, codes, strict=True) if code)]:
        assert "is already being done by process" in text and "Traceback" not in text, text
    space.vanishes()
    space.check()
    assert space.statuses() == {("ok", 1): 6} and space.naps_taken().total() == 6


def shift(space: Trial, seconds: int) -> None:
    """Give all files the times that a clock so far off would have given them."""
    for path in (space.root / "results").rglob("*"):
        status = path.lstat()
        os.utime(path, (status.st_atime + seconds, status.st_mtime + seconds), follow_symlinks=False)


def test_a_clock_that_jumps_within_a_run(trial, reference):
    """A year to and fro, several times, while cells run: no timeout, no early or late end."""
    space = trial()
    clock = space.root / "clock"
    clock.write_text("0")
    space.extra = {"KVFRONTIER_CLOCK": str(clock)}
    process = space.start(DATABASE)
    jumps = [*random.Random(f"{SEED} clock").sample(JUMPS, 2), 0, 3600, -3600]
    wait_until(lambda: space.naps_taken().total() >= 1 or process.poll() is not None, PATIENCE_S, "cells run")
    for jump in jumps:
        clock.write_text(str(jump))
        time.sleep(0.6)
    assert process.wait(PATIENCE_S) == 0, (space.root / "output.txt").read_text()
    table, _ = read_table(space.results, ["started_at", "wall_s"])
    years = {row["started_at"].year for row in table.to_pylist()}
    assert len(years) > 1, "the clock did not jump"
    assert all(0 <= row["wall_s"] < 60 for row in table.to_pylist() if row["wall_s"] is not None)
    space.extra = {}
    space.vanishes()
    space.equals(reference)
    assert NOTHING in space.snakemake(DATABASE).stdout


@pytest.mark.parametrize("nth", range(len(JUMPS) if FAULTS > 3 else 1))  # named alike in every process of xdist
def test_a_clock_that_jumps_between_runs(trial, nth):
    """Failures are tried again, what has come is published, and what is done stays done, whatever the files' times."""
    jump_s = random.Random(SEED).sample(JUMPS, len(JUMPS))[nth]
    space = trial(naps("ok", "error", seed=[0, 1]))
    assert space.snakemake("results/trial/report.html").returncode == 0
    assert space.statuses() == {("ok", 1): 2, ("error", 1): 2}
    shift(space, jump_s)  # as if those rows had been measured before the clock was set right
    clock = space.root / "clock"
    clock.write_text(str(jump_s / 2))
    space.extra = {"KVFRONTIER_CLOCK": str(clock)}
    second = space.snakemake("results/trial/report.html")
    assert second.returncode == 0, second.stdout
    assert space.statuses() == {("ok", 1): 2, ("error", 1): 2, ("error", 2): 2}
    shift(space, -jump_s)
    space.extra = {}
    no_more_errors = [{"drop": {"workload.ending": "error", "seed": {"gt": 1}}}]
    space.campaign(naps("ok", "error", seed=[0, 1, 2]), constraints=no_more_errors)
    ledgers = [f"results/trial/ledgers/{shard.name}.json" for shard in planned(space)]
    assert space.snakemake(*ledgers).returncode == 0, "measured, and stopped before anything was published"
    shift_one(space.results / "trial.duckdb", abs(jump_s))
    shift_one(space.results / "report.html", 2 * abs(jump_s))
    before = (space.results / "report.html").read_text()
    third = space.snakemake("results/trial/report.html")
    assert third.returncode == 0, third.stdout
    assert len({row[0] for row in space.published()}) == 5, "the new cell is not in the database"
    assert (space.results / "report.html").read_text() != before, "the report is the old one"
    assert NOTHING in space.snakemake("results/trial/report.html").stdout


def planned(space: Trial) -> tuple:
    space.snakemake("-n", DATABASE)
    return space.index().shards


def shift_one(path: Path, seconds: int) -> None:
    os.utime(path, (time.time() + seconds, time.time() + seconds))
