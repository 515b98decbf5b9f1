"""Pruning drops what no plan refers to and nothing else, also when it is killed at any step."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.metrics import TTFT_S, Measurement
from kvfrontier.store.files import LEFT_AFTER_S
from kvfrontier.store.fold import fold
from kvfrontier.store.ledger import shard_lock
from kvfrontier.store.lock import Busy, held
from kvfrontier.store.parts import list_parts
from kvfrontier.store.prune import DAMAGED, LEFTOVERS, LOGS, STALE, SUPERSEDED, prune, remove_folder, survey
from kvfrontier.store.rows import loose_files, read_table, write_row
from kvfrontier.store.running import hold
from synthetic import PLAN_SCHEMA, planned_cell, write_campaign

SHARD = "toy.simulator.cpu.000-abc"


def a_row(cell: int, version: str, attempt: int = 1, minute: int = 0) -> dict:
    return {
        "cell_id": f"c{cell:019d}",
        "fingerprint": f"{cell:030d}{version * 2}",
        "parts": {"cell": "c"},
        "cell": "{}",
        "status": "ok",
        "source": "model",
        "attempt": attempt,
        "started_at": datetime(2026, 1, 1, 0, minute, tzinfo=UTC),
        "provenance": {"host": "here"},
        "measurements": [Measurement(TTFT_S, cell + attempt / 10, repeat=0)],
    }


def write_plan(folder: Path, rows: list[dict]) -> None:
    """A plan of these rows' versions."""
    from synthetic import cells

    template = planned_cell(next(cells()))
    planned = [template | {"shard": SHARD} | {name: row[name] for name in ("cell_id", "fingerprint")} for row in rows]
    (folder / "plan").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(planned, schema=PLAN_SCHEMA), folder / "plan" / "cells.parquet")


def stored(folder: Path) -> Counter:
    rows, damaged = read_table(folder, ["fingerprint", "attempt"])
    assert not damaged
    return Counter((row["fingerprint"], row["attempt"]) for row in rows.to_pylist())


@pytest.fixture
def folder(tmp_path):
    """Eight cells of a new version; of four of them also old rows; two planned cells have only an old one yet."""
    folder = tmp_path / "trial"
    new, old = [a_row(n, "b", minute=9) for n in range(8)], [a_row(n, "a") for n in range(6)]
    for rows in (old[:3], new[:4], [*old[3:], a_row(7, "b", attempt=2, minute=10)]):
        for row in rows:
            write_row(folder, row)
        fold(folder, SHARD, [row["fingerprint"] for row in rows])
    for row in (new[7], a_row(9, "a"), new[6]):  # 9: a cell that is not planned at all
        write_row(folder, row)
    write_plan(folder, new)
    assert len(list_parts(folder)) == 3 and len(loose_files(folder)) == 3
    return folder


STAYS = {(a_row(n, "b")["fingerprint"], 1) for n in (0, 1, 2, 3, 6, 7)}
SECOND = (a_row(7, "b")["fingerprint"], 2)
LAST_KNOWN = {(a_row(n, "a")["fingerprint"], 1) for n in (4, 5)}


def test_a_survey_changes_nothing_and_says_what_would_go(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    tally = survey(folder).tally
    assert tally.counts == {STALE: 5} and tally.bytes[STALE] > 0
    assert (tally.kept_rows, tally.last_known) == (9, 2)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_rows_of_the_plan_stay_and_so_does_the_last_known_of_a_cell_not_measured_yet(folder):
    before = {(row["fingerprint"], row["attempt"]): row for row in read_table(folder)[0].to_pylist()}
    assert prune(folder).counts == {STALE: 5}
    assert stored(folder) == Counter(dict.fromkeys([*STAYS, SECOND, *LAST_KNOWN], 1))
    assert all(before[row["fingerprint"], row["attempt"]] == row for row in read_table(folder)[0].to_pylist())
    assert prune(folder).counts == {}, "and then there is nothing left to do"


def test_earlier_attempts_go_when_asked(folder):
    assert survey(folder, attempts=True).tally.counts == {STALE: 5, SUPERSEDED: 1}
    prune(folder, attempts=True)
    assert set(stored(folder)) == {*STAYS, SECOND, *LAST_KNOWN} - {(SECOND[0], 1)}


def test_folding_after_pruning_finds_everything(folder):
    prune(folder)
    names = [a_row(n, "b")["fingerprint"] for n in range(8)]
    fold(folder, SHARD, names)
    assert set(stored(folder)) == {*STAYS, SECOND, *LAST_KNOWN}


def killed_at(step: int, folder: Path) -> bool:
    """Prune in a process that ends, as by `kill -9`, before its n-th change of the disk; True if it came so far."""
    child = os.fork()
    if child == 0:
        steps = iter(range(step))

        def counted(do):
            def wrapper(*arguments, **options):
                if next(steps, None) is None:
                    os._exit(9)
                return do(*arguments, **options)

            return wrapper

        for name in ("replace", "unlink", "rename", "rmdir", "fsync", "open"):
            setattr(os, name, counted(getattr(os, name)))
        Path.unlink = counted(Path.unlink)
        try:
            prune(folder, attempts=True)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_killed_at_every_step_no_row_of_the_plan_is_lost_or_doubled(folder, tmp_path):
    steps, final = 0, {*STAYS, SECOND, *LAST_KNOWN} - {(SECOND[0], 1)}
    while True:
        copy = shutil.copytree(folder, tmp_path / str(steps) / "trial")
        if not killed_at(steps, copy):
            break
        found = stored(copy)
        assert set(found) >= final and max(found.values()) == 1
        prune(copy, attempts=True)
        assert stored(copy) == Counter(dict.fromkeys(final, 1)), "the next one ends what was begun"
        steps += 1
    assert steps >= 10, "files were written, renamed and removed"
    assert stored(copy) == Counter(dict.fromkeys(final, 1))


def test_damaged_files_and_old_leftovers_go_and_young_ones_stay(folder):
    (folder / "store" / "aa-bb.parquet.damaged").write_bytes(b"x" * 10)
    (folder / "cells" / "00" / ".x.parquet.12.tmp").write_bytes(b"x")
    (folder / ".building-abc").mkdir()
    (folder / ".building-abc" / "trial.duckdb").write_bytes(b"x")
    (folder / "logs" / "measure").mkdir(parents=True)
    (folder / "logs" / "measure" / "gone.log").write_text("old")
    (folder / "logs" / "measure" / f"{SHARD}.log").write_text("new")
    assert prune(folder).counts == {STALE: 5, DAMAGED: 1}
    long_ago = time.time() - 2 * LEFT_AFTER_S
    for path in (folder / "cells" / "00" / ".x.parquet.12.tmp", folder / ".building-abc"):
        os.utime(path, (long_ago, long_ago))
    assert prune(folder, logs=True).counts == {LEFTOVERS: 2, LOGS: 1}
    assert [path.name for path in (folder / "logs" / "measure").iterdir()] == [f"{SHARD}.log"]
    assert not (folder / ".building-abc").exists() and not list(folder.rglob("*.tmp"))


def test_a_damaged_part_is_left_for_the_fold_to_name(folder):
    part = list_parts(folder)[0]
    part.write_bytes(part.read_bytes()[:50])
    prune(folder)
    assert part.exists()


def test_without_a_plan_nothing_is_taken_for_stale(folder):
    (folder / "plan" / "cells.parquet").unlink()
    with pytest.raises(Unavailable, match="kvfrontier plan"):
        prune(folder)


def test_not_while_the_campaign_runs_or_a_shard_is_measured(folder):
    before = stored(folder)
    lock = hold(folder)
    with pytest.raises(Busy, match="campaign trial is already being done"):
        prune(folder)
    os.close(lock)
    with held(shard_lock(folder, SHARD), "measuring"), pytest.raises(Busy, match=f"measuring {SHARD}"):
        prune(folder)
    assert stored(folder) == before


def test_whole_results_are_renamed_before_they_go(tmp_path, monkeypatch):
    folder = write_campaign(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            remove_folder(folder)
    assert not folder.exists() and [path.name.partition("synthetic")[0] for path in tmp_path.iterdir()] == [".pruned-"]
