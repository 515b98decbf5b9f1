"""How far a campaign is: done + in flight + remaining is always every cell, read cheaply, without a lock."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.plan.disk import read_cells
from kvfrontier.store import newest as newest_module
from kvfrontier.store.attempts import newest_of
from kvfrontier.store.database import build_database, database_path, live_path
from kvfrontier.store.fold import fold
from kvfrontier.store.heartbeat import heartbeat_file
from kvfrontier.store.ledger import ledger_file, shard_lock
from kvfrontier.store.live import open_current, stored_totals
from kvfrontier.store.lock import acquire
from kvfrontier.store.newest import Newest, rows_key
from kvfrontier.store.progress import shard_progress, totals
from kvfrontier.store.query import open_database
from kvfrontier.store.rows import cell_file, loose_files, read_table, write_row
from synthetic import a_beat, planned_cell, stored_row, write_campaign
from synthetic import cells as synthetic_cells

SHARD = "test-alpha.torch.cpu.000-0123456789ab"
BUSY = {"started_at": datetime.now(UTC) - timedelta(minutes=5), "counts": {"ok": 3}, "settled": 0, "total": 35}


@pytest.fixture
def campaign(tmp_path):
    """Shard SHARD has 35 cells: 33 are stored and ok, one is an oom, one has no row."""
    return write_campaign(tmp_path, models=("test-alpha",))


def progress_of(folder, estimate=lambda: None):
    return shard_progress(folder, read_cells(folder), Newest(folder).read(), estimate)


def busy(folder, **values):
    from kvfrontier.store.heartbeat import write_heartbeat

    write_heartbeat(folder, a_beat(shard=SHARD, **{**BUSY, **values}))


def put(folder, number, **changes):
    """Store another row of the cell with this number."""
    cell = list(synthetic_cells(("test-alpha",)))[number]
    write_row(folder, stored_row(cell, planned_cell(cell), number) | changes)
    return cell


def test_cells_are_done_or_in_flight_or_remaining(campaign):
    shards = progress_of(campaign)
    assert [shard.cells for shard in shards] == [35, 7]
    assert shards[0].counts == {"ok": 33, "oom": 1}
    assert (shards[0].in_flight, shards[0].remaining) == (0, 1)
    missing = list(synthetic_cells(("test-alpha",)))[3]
    busy(campaign, in_flight={missing.cell_id: datetime.now(UTC)})
    shards = progress_of(campaign)
    assert (shards[0].in_flight, shards[0].remaining) == (1, 0)
    assert totals(shards).words().startswith("41 of 42 cells, 1 in flight, 0 left")


def test_an_error_is_left_until_this_run_has_tried_it_again(campaign):
    long_ago = {"status": "error", "reason_class": "ValueError", "started_at": datetime(2026, 1, 1, tzinfo=UTC)}
    cell = put(campaign, 0, **long_ago)
    assert progress_of(campaign)[0].remaining == 2, "the next run tries it again"
    busy(campaign, in_flight={cell.cell_id: datetime.now(UTC)})
    assert progress_of(campaign)[0].in_flight == 1
    put(campaign, 0, **{**long_ago, "attempt": 2, "started_at": datetime.now(UTC)})
    assert progress_of(campaign)[0].counts["error"] == 1
    heartbeat_file(campaign, SHARD).unlink()
    assert progress_of(campaign)[0].counts["error"] == 1, "it had its last attempt"


def test_an_error_of_a_shard_that_is_through_is_done(campaign):
    put(campaign, 0, status="error", reason_class="Unavailable")
    assert progress_of(campaign)[0].counts["error"] == 0
    ledger_file(campaign, SHARD).parent.mkdir()
    ledger_file(campaign, SHARD).write_text("{}")
    assert progress_of(campaign)[0].counts["error"] == 1


def test_what_the_plan_knows_to_be_impossible_is_not_left(tmp_path):
    folder = write_campaign(tmp_path, run=False)
    total = totals(progress_of(folder))
    assert (total.counts, total.remaining, total.done) == ({"unsupported": 3}, 74, 3)
    assert "nothing is being measured now" in total.words()


def test_time_left_is_by_the_estimates_at_the_pace_of_the_run(campaign):
    now = datetime.now(UTC)
    begun = now - timedelta(seconds=120)
    busy(campaign, started_at=begun, updated_at=now, measuring_since=now - timedelta(seconds=90))
    for number in (4, 6, 7, 8):
        put(campaign, number, started_at=now)
    (shard, _) = progress_of(campaign, lambda: [10.0] * 42)
    # Three of the four cells took 90 s, that is 30 s each and not 10 s; one cell is left.
    assert shard.seconds_left == pytest.approx(30, rel=0.02)


def test_time_left_without_estimates_is_the_drivers_own_or_unknown(campaign):
    busy(campaign, seconds_left=17.0)
    assert progress_of(campaign)[0].seconds_left == 17.0
    heartbeat_file(campaign, SHARD).unlink()
    assert progress_of(campaign)[0].seconds_left is None
    assert totals(progress_of(campaign)).seconds_left is None


def test_shards_that_wait_follow_on_the_lanes_that_there_are(tmp_path):
    folder = write_campaign(tmp_path, run=False)
    estimate = [1.0] * 77
    assert totals(progress_of(folder, lambda: estimate)).seconds_left == 74
    busy(folder)
    assert totals(progress_of(folder, lambda: estimate)).seconds_left == 74
    from kvfrontier.store.heartbeat import write_heartbeat

    write_heartbeat(folder, a_beat(shard=SHARD.replace("alpha", "beta"), **BUSY))
    assert totals(progress_of(folder, lambda: estimate)).seconds_left == 37


def test_the_newest_rows_are_those_of_the_store_whatever_is_folded(campaign):
    newest = Newest(campaign)
    for step in range(3):
        if step == 1:
            put(campaign, 0, attempt=2, status="error", reason="new")
        if step == 2:
            fold(campaign, SHARD, [path.stem for path in loose_files(campaign)])
        rows, _ = read_table(campaign)
        assert newest.read() == newest_of([rows])
    assert not loose_files(campaign)


def test_only_new_files_are_read(campaign, monkeypatch):
    newest = Newest(campaign)
    newest.read()
    read = []
    reader = newest_module.read_cell_file
    monkeypatch.setattr(
        newest_module, "read_cell_file", lambda path, columns: read.append(path) or reader(path, columns)
    )
    newest.read()
    assert read == []
    put(campaign, 0, attempt=2)
    newest.read()
    assert len(read) == 1


def test_a_row_that_was_deleted_or_damaged_counts_no_more(campaign):
    newest = Newest(campaign)
    before = len(newest.read())
    files = loose_files(campaign)
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:50])
    assert len(newest.read()) == before - 2


def test_a_reader_never_makes_the_lock_of_a_run_busy(campaign, monkeypatch):
    monkeypatch.setattr("fcntl.flock", lambda *arguments: pytest.fail("a reader took a lock"))
    busy(campaign)
    progress_of(campaign)
    with open_current(campaign) as current:
        current.line("x")
    monkeypatch.undo()
    acquire(shard_lock(campaign, SHARD), "measuring")


def test_the_key_of_the_rows_changes_with_every_row_and_only_then(campaign):
    keys = [rows_key(campaign), rows_key(campaign)]
    put(campaign, 0, attempt=2)
    keys.append(rows_key(campaign))
    loose_files(campaign)[0].unlink()
    keys.append(rows_key(campaign))
    assert keys[0] == keys[1] and len(set(keys)) == 3


# Which database answers ---------------------------------------------------------------------------------------------


def answer(folder, choice="auto"):
    with open_current(folder, choice=choice) as current:
        (count,) = current.connection.execute("SELECT count(*) FROM cells WHERE status = 'ok'").fetchall()[0]
        return count, current.line("trial"), current.remark


def test_the_published_database_answers_while_it_has_every_row(campaign):
    build_database(campaign)
    assert answer(campaign) == (40, "trial: 41 of 42 cells, 0 in flight, 1 left, nothing is being measured now", "")
    assert not live_path(campaign).exists()


def test_rows_that_it_lacks_are_asked_and_it_is_not_touched(campaign):
    missing = cell_file(campaign, loose_files(campaign)[0].stem)
    content = missing.read_bytes()
    missing.unlink()
    build_database(campaign)
    before = database_path(campaign).read_bytes()
    missing.write_bytes(content)
    count, line, remark = answer(campaign)
    assert remark == "the published database is older; asked the rows themselves" and remark in line
    assert answer(campaign, "published")[0] == count - 1
    assert database_path(campaign).read_bytes() == before
    build_database(campaign)
    assert not live_path(campaign).exists(), "the published one has all of it now"


def test_before_anything_is_published_the_rows_answer(campaign):
    assert answer(campaign)[2] == "nothing is published yet; asked the rows themselves"
    with pytest.raises(Unavailable, match="without --published"):
        answer(campaign, "published")


def test_a_live_database_is_kept_for_a_while_and_says_how_old_it_is(campaign, monkeypatch):
    answer(campaign)
    made = live_path(campaign).stat().st_mtime_ns
    put(campaign, 3)
    monkeypatch.setattr("kvfrontier.store.live.BUILDS_WORTH", 10_000)
    count, _, remark = answer(campaign)
    assert (count, live_path(campaign).stat().st_mtime_ns) == (40, made) and remark.endswith("ago")
    assert answer(campaign, "fresh")[0] == 41
    monkeypatch.setattr("kvfrontier.store.live.BUILDS_WORTH", 0)
    put(campaign, 5)
    assert answer(campaign)[0] == 42 - 1


def test_without_new_rows_a_live_database_stays(campaign, monkeypatch):
    answer(campaign)
    made = live_path(campaign).stat().st_mtime_ns
    monkeypatch.setattr("kvfrontier.store.live.BUILDS_WORTH", 0)
    answer(campaign)
    assert live_path(campaign).stat().st_mtime_ns == made


def test_a_driver_that_has_gone_makes_a_live_database_outdated(campaign, monkeypatch):
    busy(campaign, in_flight={list(synthetic_cells(("test-alpha",)))[3].cell_id: datetime.now(UTC)})
    assert "1 in flight, 0 left" in answer(campaign)[1]
    heartbeat_file(campaign, SHARD).unlink()
    monkeypatch.setattr("kvfrontier.store.live.BUILDS_WORTH", 0)
    assert "0 in flight, 1 left, nothing is being measured now" in answer(campaign)[1]


def test_a_folder_that_cannot_be_written_is_asked_all_the_same(campaign, monkeypatch):
    import kvfrontier.store.live as live

    build = live.build_database

    def refuse(folder, path, estimate):
        if path.parent == folder:
            raise Unavailable("read-only")
        return build(folder, path, estimate)

    monkeypatch.setattr(live, "build_database", refuse)
    assert answer(campaign)[0] == 40
    assert not live_path(campaign).exists()


def test_a_damaged_database_does_not_stop_a_question(campaign):
    database_path(campaign).write_bytes(b"no database")
    live_path(campaign).write_bytes(b"neither")
    assert answer(campaign)[0] == 40


def test_the_table_progress_adds_up(campaign):
    cell = list(synthetic_cells(("test-alpha",)))[3]
    busy(campaign, in_flight={cell.cell_id: datetime.now(UTC)}, slurm_job_id="77", seconds_left=5.0)
    build_database(campaign)
    with open_database(campaign) as connection:
        rows = connection.execute(
            "SELECT planned = ok + unsupported + infeasible + oom + timeout + error + in_flight + remaining, "
            "in_flight, host, slurm_job_id, seconds_left FROM progress ORDER BY planned DESC"
        ).fetchall()
        total = stored_totals(connection)
        planned = connection.execute("SELECT count(*) FROM cells WHERE status = 'planned'").fetchall()
    assert rows == [(True, 1, "node1", "77", 5.0), (True, 0, None, None, 0.0)]
    assert (total.done, total.in_flight, total.running, total.seconds_left) == (41, 1, 1, 5.0)
    assert planned == [(1,)]


def test_another_plan_without_new_rows_is_said(campaign):
    build_database(campaign)
    path = campaign / "plan" / "cells.parquet"
    plan = pq.read_table(path)
    pq.write_table(plan.slice(0, 35), path)
    assert "earlier plan; --fresh asks" in answer(campaign)[2]
    assert answer(campaign, "fresh")[2] == "the published database is older; asked the rows themselves"


def test_a_frame_of_a_hundred_thousand_cells_is_cheap(tmp_path):
    from kvfrontier.run.monitor import Monitor, as_dict

    folder = write_campaign(tmp_path, models=("test-alpha",))
    plan = pq.read_table(folder / "plan" / "cells.parquet")
    table, _ = read_table(folder)
    number, columns = 100_000, {}
    for name in plan.column_names:
        columns[name] = (plan[name].combine_chunks().slice(0, 1).to_pylist()) * number
    columns["cell_id"] = columns["fingerprint"] = [f"{index:032x}" for index in range(number)]
    columns["shard"] = [f"toy.torch.cpu.{index // 500:03}-0123456789ab" for index in range(number)]
    pq.write_table(
        plan.schema.empty_table().from_pydict(columns, schema=plan.schema), folder / "plan" / "cells.parquet"
    )
    stored = {name: table[name].combine_chunks().slice(0, 1).to_pylist() * number for name in table.column_names}
    stored["cell_id"] = stored["fingerprint"] = columns["cell_id"]
    stored["measurements"] = [[]] * number
    from kvfrontier.store.parts import write_part

    write_part(folder, "01234567", table.schema.empty_table().from_pydict(stored, schema=table.schema))
    monitor = Monitor(folder, lambda: [1.0] * number)
    monitor.frame()
    start_s = time.process_time()
    frame = monitor.frame()
    took_s = time.process_time() - start_s
    assert frame.totals.done == number and len(frame.shards) == 200
    assert json.dumps(as_dict(frame))
    assert took_s < 1.5, "a frame after the first must not keep a core busy"
