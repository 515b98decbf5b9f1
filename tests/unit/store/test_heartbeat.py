"""Heartbeats: whole or absent, known as dead without asking anyone, and never in the way of a run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import synthetic
from kvfrontier.run.progress import Progress
from kvfrontier.run.pulse import Pulse, pulse
from kvfrontier.store.heartbeat import (
    Heartbeat,
    drop_dead,
    heartbeat_file,
    living,
    remove_heartbeat,
    write_heartbeat,
)

SHARD = "toy.torch.cpu.000-0123456789ab"
NOW = datetime.now(UTC)


def a_beat(**values) -> Heartbeat:
    return synthetic.a_beat(**{"shard": SHARD, **values})


def test_what_is_written_is_read(tmp_path):
    beat = a_beat(in_flight={"abc": NOW}, measuring_since=NOW, seconds_left=3.5, slurm_job_id="77")
    write_heartbeat(tmp_path, beat)
    assert living(tmp_path) == {SHARD: beat}
    remove_heartbeat(tmp_path, SHARD)
    assert living(tmp_path) == {} and not list((tmp_path / "running").iterdir())


def test_a_driver_that_was_killed_is_dead_at_once_on_its_machine(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_heartbeat(tmp_path, a_beat(pid=child.pid, updated_at=NOW - timedelta(hours=5)))
    assert living(tmp_path), "an old heartbeat of a living process: it hangs in a write, perhaps"
    child.kill()
    child.wait(10)
    assert living(tmp_path) == {}


def test_a_process_that_was_given_the_number_of_a_dead_driver_is_not_it(tmp_path):
    write_heartbeat(tmp_path, a_beat(mark="12345"))
    assert living(tmp_path) == {}


@pytest.mark.parametrize(("age_s", "is_alive"), [(0, True), (50, True), (-50, True), (70, False), (-86_400, False)])
def test_a_heartbeat_from_another_machine_is_believed_while_it_is_young(tmp_path, age_s, is_alive):
    write_heartbeat(tmp_path, a_beat(place="node2 boot pid", updated_at=datetime.now(UTC) - timedelta(seconds=age_s)))
    assert bool(living(tmp_path)) == is_alive


def test_the_next_run_removes_what_is_dead_and_nothing_else(tmp_path):
    write_heartbeat(tmp_path, a_beat())
    write_heartbeat(tmp_path, a_beat(shard="dead", mark="1"))
    (tmp_path / "running" / "half.json").write_text('{"shard": ')
    (tmp_path / "running" / ".dead.json.1.tmp").write_text("")
    drop_dead(tmp_path)
    assert [path.name for path in (tmp_path / "running").iterdir()] == [f"{SHARD}.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shard": 3}', "\x00", '"text"', "NaN"])
def test_a_file_that_is_no_heartbeat_counts_as_none(tmp_path, text):
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "x.json").write_text(text)
    assert living(tmp_path) == {}


def test_the_rate_leaves_out_the_loading_of_the_model():
    beat = a_beat(counts={"ok": 7}, settled=2, updated_at=NOW, measuring_since=NOW - timedelta(seconds=8))
    assert beat.cells_per_s == pytest.approx(0.5)
    assert a_beat(counts={"ok": 3}, settled=2, measuring_since=NOW).cells_per_s is None


def test_a_pulse_is_there_from_the_first_moment_and_gone_after_the_last(tmp_path):
    progress = Progress("toy", 4, Counter(ok=1))
    with pulse(tmp_path, SHARD, progress) as beating:
        assert living(tmp_path)[SHARD].counts == {"ok": 1}
        beating.in_flight = lambda: {"abc": 2.0}
        progress.add("error")
        beating.beat()
        beat = living(tmp_path)[SHARD]
        assert (beat.counts, beat.total, beat.settled) == ({"ok": 1, "error": 1}, 4, 1)
        assert (beat.updated_at - beat.in_flight["abc"]).total_seconds() == pytest.approx(2)
    assert not heartbeat_file(tmp_path, SHARD).exists()


def test_a_pulse_ends_when_the_block_fails(tmp_path):
    with pytest.raises(ValueError), pulse(tmp_path, SHARD, Progress("toy", 4, Counter())):
        raise ValueError
    assert not heartbeat_file(tmp_path, SHARD).exists()


def test_it_beats_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("kvfrontier.run.pulse.INTERVAL_S", 0.02)
    progress = Progress("toy", 4, Counter())
    with pulse(tmp_path, SHARD, progress):
        progress.add("ok")
        deadline = time.monotonic() + 10
        while living(tmp_path)[SHARD].counts != {"ok": 1}:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_disk_that_refuses_costs_the_heartbeat_and_a_line_in_the_log(tmp_path, caplog):
    (tmp_path / "running").write_text("a file where the folder should be")
    beating = Pulse(tmp_path, SHARD, Progress("toy", 4, Counter()))
    beating.beat()
    beating.beat()
    assert len([line for line in caplog.messages if "no heartbeat" in line]) == 1
    beating.start()
    beating.end()


def test_a_full_disk_leaves_the_last_whole_heartbeat(tmp_path, monkeypatch):
    write_heartbeat(tmp_path, a_beat())

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError):
        write_heartbeat(tmp_path, a_beat(total=99))
    monkeypatch.undo()
    assert living(tmp_path)[SHARD].total == 10
    assert [path.name for path in (tmp_path / "running").iterdir()] == [f"{SHARD}.json"]


def test_a_heartbeat_costs_next_to_nothing(tmp_path):
    beating = Pulse(tmp_path, SHARD, Progress("toy", 4, Counter()))
    beating.in_flight = lambda: {f"cell{number}": 1.0 for number in range(64)}
    beating.beat()
    start_s = time.process_time()
    for _ in range(20):
        beating.beat()
    assert (time.process_time() - start_s) / 20 < 0.02, "at one in two seconds that is 1 % of a core"
    assert len(json.loads(heartbeat_file(tmp_path, SHARD).read_text())["in_flight"]) == 64
