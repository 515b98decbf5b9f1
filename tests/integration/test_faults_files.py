"""Stored files that are cut off, emptied, overwritten or swapped: only what is gone is measured again."""

import random
import shutil
import signal
from pathlib import Path

import duckdb
import pytest
from faults import FAULTS, PATIENCE_S, SEED, Trial
from kvfrontier.store.parts import list_parts, read_part
from kvfrontier.store.rows import loose_files, read_table
from workspace import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
DATABASE = "results/trial/trial.duckdb"
NAPS = 8
NOTHING = "Nothing to be done"
AXES = {
    "workload": [{"name": "nap"}, {"name": "speed", "text": "generated", "context_tokens": 9000}],
    "seed": list(range(7 if FAULTS > 1 else 4)),  # with more parts they would be merged
}
ONE_NAP = [{"drop": {"workload": "nap", "seed": {"gt": 0}}}]
"""All but one of the cells are known to be impossible: rows, and parts, that cost no Ray."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A campaign that is done, a shard each cell."""
    trial = Trial(tmp_path_factory.mktemp("whole"), AXES, constraints=ONE_NAP, shard={"max_cells": 1})
    run = trial.snakemake(DATABASE)
    assert run.returncode == 0, run.stdout
    yield trial
    trial.close()


@pytest.fixture
def copy(tmp_path, whole):
    """The same, to be damaged."""
    trial = Trial(tmp_path, AXES, constraints=ONE_NAP, shard={"max_cells": 1})
    for name in ("results", ".snakemake"):
        shutil.copytree(whole.root / name, tmp_path / name, symlinks=True)
    assert trial.snakemake(DATABASE).returncode == 0
    yield trial
    trial.close()


def some(kinds: list, what: str) -> list:
    """As many as FAULTS says, in their order."""
    chosen = random.Random(f"{SEED} {what}").sample(kinds, min(FAULTS, len(kinds)))
    return [kind for kind in kinds if kind in chosen]


def cut(path: Path, other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random.Random(f"{SEED} cut").randrange(1, len(data))])


def empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path, other: Path) -> None:
    """Inside, so that neither end tells."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 64] = bytes(value ^ 0x5A for value in data[middle : middle + 64])
    path.write_bytes(data)


def swap(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def delete(path: Path, other: Path) -> None:
    path.unlink()


def folder(path: Path, other: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def dangle(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def text(path: Path, other: Path) -> None:
    path.write_text("PAR1 <html>404</html> PAR1")


DAMAGES = [cut, empty, overwrite, swap, delete, folder, dangle, text]


def test_cell_files(tmp_path):
    """Rows that are not folded yet: a run is killed while they lie there, and some of them are damaged."""
    slow = {"name": "nap", "seconds": 0.05}  # quicker cells are stored together, in parts
    space = Trial(tmp_path, {"workload": [slow], "seed": list(range(NAPS + 2))})
    try:
        space.hold_after(NAPS)
        process = space.start(DATABASE)
        wait_until(lambda: space.naps_taken().total() == NAPS + 2 and len(space.rows()) == NAPS, PATIENCE_S, "rows")
        process.send_signal(signal.SIGKILL)
        space.vanishes()
        space.let_go()
        files = loose_files(space.results)
        before = space.values()
        assert len(files) == NAPS
        damages = [cut, empty, swap, text]
        for damage, path in zip(damages, files, strict=False):
            damage(path, files[-1])
        run = space.snakemake(DATABASE)
        assert run.returncode == 0, run.stdout
        space.vanishes()
        assert len(space.rows()) == NAPS + 2 and space.statuses() == {("ok", 1): NAPS + 2}
        assert before.items() <= space.values().items()
        assert space.naps_taken().total() == NAPS + 2 + 2 + len(damages), "not just what was gone or in flight"
        assert NOTHING in space.snakemake(DATABASE).stdout
    finally:
        space.close()


def test_parts(copy, whole, tmp_path_factory):
    """A damage for each part but two, whose rows stay as they are, though a part of another campaign comes in."""
    other = Trial(tmp_path_factory.mktemp("other"), {"workload": [{"name": "nap"}], "seed": [77]})
    try:
        assert other.snakemake(DATABASE).returncode == 0
        foreign, parts = list_parts(other.results)[0], list_parts(copy.results)
        assert len(parts) == len(AXES["seed"]) + 1
        damages = random.Random(f"{SEED} parts").sample(DAMAGES, len(parts) - 2)
        sound = {row["fingerprint"]: row for path in parts[-2:] for row in read_part(path).to_pylist()}
        for damage, path in zip(damages, parts, strict=False):
            damage(path, foreign)
        shutil.copy(foreign, copy.results / "store")
        told = copy.snakemake("-n", DATABASE).stdout
        assert told.count("rows of 1 of 1 cells are gone or damaged") == len(damages), told
        run = copy.snakemake(DATABASE)
        assert run.returncode == 0 and "Traceback" not in run.stdout, run.stdout
        rows = {row["fingerprint"]: row for row in read_table(copy.results)[0].to_pylist()}
        assert sound.items() <= rows.items()
        assert copy.published() == whole.published()
        assert whole.values().items() <= copy.values().items()
        assert NOTHING in copy.snakemake(DATABASE).stdout
    finally:
        other.close()


def test_the_database(copy):
    before = copy.published()
    database, other = copy.results / "trial.duckdb", copy.root / "other.duckdb"
    with duckdb.connect(other) as connection:
        connection.execute("CREATE TABLE cells AS SELECT 1 AS cell_id")
    for damage in some([cut, empty, overwrite, swap, folder, dangle, text], "database"):
        damage(database, other)
        asked = copy.run("kvfrontier", "query", "trial", "SELECT 'n=' || count(*) AS cells FROM cells")
        assert "Traceback" not in asked.stdout
        assert f"n={len(copy.planned())}" in asked.stdout or asked.returncode != 0, f"{damage}: {asked.stdout}"
        run = copy.snakemake(DATABASE)
        assert run.returncode == 0 and "Traceback" not in run.stdout, f"{damage}: {run.stdout}"
        assert copy.published() == before
        assert NOTHING in copy.snakemake(DATABASE).stdout, damage


def test_what_can_be_made_again(copy):
    before = copy.published()
    names = ("ledgers/{}.json", "plan/index.json", "plan/cells.parquet", "plan/published.json", "plan")
    for name, damage in some([(name, damage) for name in names for damage in (cut, empty, text, delete)], "plan"):
        path = copy.results / name.format(copy.index().shards[0].name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            damage(path, path)
        run = copy.snakemake(DATABASE)
        assert run.returncode == 0 and "Traceback" not in run.stdout, f"{damage} {name}: {run.stdout}"
        assert copy.published() == before
        assert NOTHING in copy.snakemake(DATABASE).stdout, f"{damage} {name}"
