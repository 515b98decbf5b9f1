"""A disk that is full, read-only or somebody else's, in the middle or at one file: told in words, survived."""

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults import FAULTS, PATIENCE_S, SEED, Trial, trouble
from kvfrontier.errors import Unavailable
from kvfrontier.plan.disk import prepare
from kvfrontier.store.database import build_database, database_path
from toy_project import CAMPAIGN, ToyProject, planned_cells, store, toy_plugins
from workspace import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600 + 120 * FAULTS)]
DATABASE = "results/trial/trial.duckdb"
DISK_BYTES = 8 * 2**20
WORDS = {"ENOSPC": "the disk is full", "EROFS": "read-only", "EACCES": "may not write", "EDQUOT": "quota"}
PLACES = [
    # event, path: whatever a run must write, in its order
    ("open", "results/trial/plan/cells.parquet.*"),
    ("os.rename", "results/trial/plan/index.json"),
    ("open", "results/trial/.lock"),
    ("open", "results/trial/plan/.published.json.*"),
    ("open", "results/trial/inputs/model/.*"),
    ("open", "results/trial/ledgers/.*.lock"),
    ("open", "results/trial/cells/*/.*.tmp"),
    ("open", "results/trial/store/.lock"),
    ("open", "results/trial/store/.*.tmp"),
    ("os.remove", "results/trial/cells/*/*.parquet"),
    ("os.rename", "results/trial/ledgers/*.json"),
    ("os.mkdir", "results/trial/.building-*"),
    ("os.rename", "results/trial/trial.duckdb"),
    ("open", "results/trial/figures/.*.tmp"),
    ("open", "results/trial/.report.html.*.tmp"),
    ("os.rename", "results/trial/verdict.txt"),
]


@pytest.fixture
def trial(tmp_path):
    trial = Trial(tmp_path)
    yield trial
    trial.close()


def mount(*arguments: str | Path) -> None:
    """Fails, or skips, where that is not allowed."""
    told = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if told.returncode:
        missing = f"nothing can be mounted here (needs root): {told.stderr.strip()}"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)


@contextmanager
def small_disk(trial: Trial) -> Iterator[Path]:
    """Results on a file system of their own."""
    disk = trial.root / "results"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@contextmanager
def held(trial: Trial) -> Iterator[subprocess.Popen]:
    """A run that stands still: some rows are stored, both workers are in a cell. Afterwards it goes on to its end."""
    trial.hold_after(4)
    trial.kills += 1
    process = trial.start(DATABASE)
    wait_until(lambda: len(trial.rows()) >= 3 and trial.naps_taken().total() >= 5, PATIENCE_S, "some cells are stored")
    yield process
    trial.let_go()
    assert process.wait(PATIENCE_S) != 0
    told = (trial.root / "output.txt").read_text() + trial.logs()
    assert "Traceback" not in told, told


def fill(disk: Path, leave_bytes: int) -> Path:
    """Write a file that takes all of a disk but so much."""
    free_bytes = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * max(0, free_bytes - leave_bytes))
    return ballast


def test_a_disk_that_fills_up_in_the_middle_and_then_at_any_level(trial, reference):
    chance = random.Random(f"{SEED} full")
    with small_disk(trial) as disk:
        with held(trial):
            ballast = fill(disk, 0)
        assert WORDS["ENOSPC"] in (trial.root / "output.txt").read_text()
        trial.vanishes()
        for _ in range(FAULTS):
            ballast.unlink()
            leave_bytes = int(chance.uniform(0, 1.5e6))
            ballast = fill(disk, leave_bytes)
            trial.kills += 1
            run = trial.snakemake(DATABASE)
            told = run.stdout + trial.logs()
            assert "Traceback" not in told, f"seed {SEED}, {leave_bytes} B free: {told}"
            assert run.returncode == 0 or WORDS["ENOSPC"] in told or "o space left" in told, told
            trial.check()
            trial.vanishes()
        ballast.unlink()
        trial.finish(reference, DATABASE)


def test_a_database_that_does_not_fit_is_not_published(tmp_path):
    """DuckDB writes most of it when it closes, and closes without a word."""
    tmp_path.joinpath("results").mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", tmp_path / "results")
    try:
        with toy_plugins():
            toys = ToyProject(tmp_path)
            toys.campaign_text(CAMPAIGN)
            index = prepare(toys.project, "trial")
            for cell in planned_cells(index):
                store(index, cell)
            size_bytes = build_database(index.campaign_dir).stat().st_size
            database_path(index.campaign_dir).unlink()
            for leave_bytes in range(0, size_bytes, size_bytes // 7):
                ballast = fill(tmp_path / "results", leave_bytes)
                with pytest.raises(Unavailable, match=r"No space left|is full"):
                    build_database(index.campaign_dir)
                assert not database_path(index.campaign_dir).exists()
                ballast.unlink()
            build_database(index.campaign_dir)
    finally:
        subprocess.run(["umount", "-l", tmp_path / "results"], check=True)


def test_results_that_turn_read_only_in_the_middle(trial, reference):
    results = trial.root / "results"
    with held(trial):
        mount("--bind", results, results)
        try:
            mount("-o", "remount,ro,bind", results)
        except BaseException:
            subprocess.run(["umount", "-l", results], check=True)
            raise
    try:
        assert WORDS["EROFS"] in (trial.root / "output.txt").read_text()
        trial.check()
        trial.vanishes()
        again = trial.snakemake(DATABASE)
        assert again.returncode != 0 and WORDS["EROFS"] in again.stdout.lower() and "Traceback" not in again.stdout
    finally:
        subprocess.run(["umount", "-l", results], check=True)
    trial.finish(reference, DATABASE)


def test_a_folder_of_somebody_else(trial):
    """Told in words, and nothing is left that keeps the next run from it. Root may write anywhere: not this one."""
    trial.results.parent.mkdir()
    trial.results.parent.chmod(0o555)
    plain = trial.command
    if os.geteuid() == 0:
        less = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
        trial.command = lambda *arguments, **settings: [*less, *plain(*arguments, **settings)]
    run = trial.snakemake(DATABASE)
    assert run.returncode != 0 and "Traceback" not in run.stdout
    assert "ermission denied" in run.stdout and "KVFRONTIER_RESULTS" in run.stdout, run.stdout
    assert not list(trial.results.parent.iterdir())
    trial.results.parent.chmod(0o755)
    trial.command = plain
    assert trial.snakemake("-n", DATABASE).returncode == 0


def test_each_file_that_cannot_be_written_is_named(trial, reference):
    chance = random.Random(f"{SEED} refused")
    places = PLACES if len(PLACES) <= FAULTS else sorted(chance.sample(PLACES, FAULTS), key=PLACES.index)
    for event, path in places:
        error = chance.choice(list(WORDS))
        told = trouble(trial, error, event, path, 1)
        assert told is not None, f"nobody came by {path}; seed {SEED}"
        assert "Traceback" not in told, f"{error} at {path}, seed {SEED}: {told}"
        assert WORDS[error] in told or os.strerror(getattr(errno, error)) in told, told
        trial.check()
        trial.vanishes()
    trial.finish(reference)
