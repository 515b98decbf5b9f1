"""Rows, parts, folding and ledgers: nothing is lost, nothing is counted twice, damage is named."""

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.metrics import TTFT_S, Measurement
from kvfrontier.store import fold as folding
from kvfrontier.store.attempts import Stored
from kvfrontier.store.fold import fold
from kvfrontier.store.ledger import drop_untrue, ledger_file, stored_rows
from kvfrontier.store.lock import Busy, acquire, held
from kvfrontier.store.parts import group_of, list_parts
from kvfrontier.store.rows import Among, iter_files, loose_files, read_table, write_row

SHARD = "toy.simulator.cpu.000-abc"


class Shard(NamedTuple):
    name: str


def a_row(fingerprint: str, attempt: int = 1, status: str = "ok", value: float = 1.5) -> dict:
    return {
        "cell_id": "c" + fingerprint,
        "fingerprint": fingerprint,
        "parts": {"cell": "c", "device": "cpu"},
        "cell": "{}",
        "status": status,
        "source": "model",
        "attempt": attempt,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "wall_s": 0.5,
        "provenance": {"host": "here"},
        "measurements": [Measurement(TTFT_S, value, repeat=0)],
    }


def plan(folder: Path, shards: dict[str, list[str]]) -> list[Shard]:
    rows = [{"shard": name, "fingerprint": fingerprint} for name, members in shards.items() for fingerprint in members]
    (folder / "plan").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "plan" / "cells.parquet")
    return [Shard(name) for name in shards]


def test_a_row_reads_back_as_it_was_written(tmp_path):
    write_row(tmp_path, a_row("aa11"))
    table, damaged = read_table(tmp_path)
    row = table.to_pylist()[0]
    assert damaged == []
    assert dict(row["parts"]) == {"cell": "c", "device": "cpu"} and dict(row["provenance"]) == {"host": "here"}
    assert row["measurements"][0]["metric"] == TTFT_S and row["measurements"][0]["value"] == 1.5
    assert row["measurements"][0]["turn"] is None and row["reason"] is None
    assert [path.name for path in iter_files(tmp_path)] == ["aa11.parquet"]


def test_the_rows_of_one_shard_are_read_without_those_of_others(tmp_path, monkeypatch):
    other = "toy.torch.cpu.000-def"
    for shard, fingerprints in ((SHARD, ["aa11", "aa12"]), (other, ["bb11"])):
        for fingerprint in fingerprints:
            write_row(tmp_path, a_row(fingerprint))
        fold(tmp_path, shard, fingerprints)
    for fingerprint in ("aa13", "bb12"):
        write_row(tmp_path, a_row(fingerprint, status="oom"))
    among = Among(group_of(SHARD), ["aa11", "aa13", "aa14"])
    opened = [path.name for path in iter_files(tmp_path, among)]
    assert opened == [*(path.name for path in list_parts(tmp_path, group_of(SHARD))), "aa13.parquet"]
    assert stored_rows(tmp_path, among) == ({"aa11": Stored(1, "ok"), "aa13": Stored(1, "oom")}, [])
    assert set(stored_rows(tmp_path)[0]) == {"aa11", "aa12", "aa13", "bb11", "bb12"}


def test_a_shard_still_hears_of_a_damaged_part_of_its_group(tmp_path):
    write_row(tmp_path, a_row("aa11"))
    fold(tmp_path, SHARD, ["aa11"])
    part = list_parts(tmp_path)[0]
    part.write_bytes(part.read_bytes()[:-5])
    stored, damaged = stored_rows(tmp_path, Among(group_of(SHARD), ["aa11"]))
    assert stored == {} and len(damaged) == 1 and part.name in damaged[0]
    assert stored_rows(tmp_path, Among(group_of("another.shard"), ["aa11"])) == ({}, [])


def test_nothing_half_written_is_ever_a_row(tmp_path):
    write_row(tmp_path, a_row("aa11"))
    assert [path.name for path in (tmp_path / "cells" / "aa").iterdir()] == ["aa11.parquet"]


def test_folding_moves_rows_into_one_part_and_writes_the_ledger(tmp_path):
    names = [f"aa{index:02d}" for index in range(20)]
    for name in names:
        write_row(tmp_path, a_row(name))
    assert fold(tmp_path, SHARD, names) == ledger_file(tmp_path, SHARD)
    assert len(list_parts(tmp_path)) == 1 and not loose_files(tmp_path)
    assert read_table(tmp_path)[0].num_rows == 20
    assert drop_untrue(tmp_path, plan(tmp_path, {SHARD: names})) == []
    assert ledger_file(tmp_path, SHARD).exists()


def test_a_crash_between_writing_a_part_and_removing_its_rows_counts_nothing_twice(tmp_path, monkeypatch):
    write_row(tmp_path, a_row("aa11"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fold(tmp_path, SHARD, ["aa11"])
    assert loose_files(tmp_path) and list_parts(tmp_path)
    assert read_table(tmp_path)[0].num_rows == 1
    fold(tmp_path, SHARD, ["aa11"])
    assert read_table(tmp_path)[0].num_rows == 1 and not loose_files(tmp_path)


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_damaged_files_are_named_and_set_aside_and_never_fatal(tmp_path, cut):
    for name in ("aa11", "bb22", "cc33"):
        write_row(tmp_path, a_row(name))
    fold(tmp_path, SHARD, ["aa11"])
    part, loose = list_parts(tmp_path)[0], loose_files(tmp_path)[0]
    for path in (part, loose):
        path.write_bytes(path.read_bytes()[:cut])
    table, damaged = read_table(tmp_path, ["fingerprint", "status"])
    assert table.column("fingerprint").to_pylist() == ["cc33"]
    assert len(damaged) == 2 and str(part) in damaged[0] and str(loose) in damaged[1]
    fold(tmp_path, SHARD, ["bb22", "cc33"])
    assert all(path.with_name(path.name + ".damaged").exists() for path in (part, loose)), "warned about for ever"
    assert read_table(tmp_path)[0].num_rows == 1


def test_one_changed_byte_in_a_part_is_damage(tmp_path):
    write_row(tmp_path, a_row("aa11"))
    fold(tmp_path, SHARD, ["aa11"])
    part = list_parts(tmp_path)[0]
    data = bytearray(part.read_bytes())
    data[20] ^= 1
    part.write_bytes(bytes(data))
    assert stored_rows(tmp_path)[0] == {}


@pytest.mark.parametrize("loss", ["deleted", "truncated"])
def test_a_ledger_falls_with_the_rows_it_speaks_of_and_only_that_one(tmp_path, loss):
    other = "toy.torch.cpu.000-def"
    write_row(tmp_path, a_row("aa11"))
    write_row(tmp_path, a_row("bb22"))
    fold(tmp_path, SHARD, ["aa11"])
    first = list_parts(tmp_path)[0]
    fold(tmp_path, other, ["bb22"])
    first.unlink() if loss == "deleted" else first.write_bytes(first.read_bytes()[:50])
    reasons = drop_untrue(tmp_path, plan(tmp_path, {SHARD: ["aa11"], other: ["bb22"]}))
    assert any(SHARD in reason and "gone or damaged" in reason for reason in reasons)
    assert not ledger_file(tmp_path, SHARD).exists() and ledger_file(tmp_path, other).exists()


def test_failures_are_tried_again_until_their_last_attempt(tmp_path):
    shards = plan(tmp_path, {SHARD: ["aa11", "bb22"]})
    write_row(tmp_path, a_row("aa11", status="error"))
    write_row(tmp_path, a_row("bb22", status="oom"))
    fold(tmp_path, SHARD, ["aa11", "bb22"])
    assert drop_untrue(tmp_path, shards) == [f"{SHARD}: 1 failed cells are tried once more"]
    write_row(tmp_path, a_row("aa11", attempt=2, status="timeout"))
    fold(tmp_path, SHARD, ["aa11", "bb22"])
    assert drop_untrue(tmp_path, shards) == []
    assert drop_untrue(tmp_path, shards, max_attempts=3) != []
    assert stored_rows(tmp_path)[0]["aa11"] == Stored(2, "timeout")


def test_what_only_the_machine_is_to_blame_for_is_never_final():
    for reason_class in ("DeviceMismatch", "Unavailable"):
        assert not Stored(5, "error", reason_class).is_final(2)
    assert Stored(2, "error", "ValueError").is_final(2) and Stored(2, "timeout").is_final(2)


def test_of_two_rows_of_one_attempt_ledgers_and_tables_take_the_same(tmp_path):
    late = a_row("aa11", status="error") | {"started_at": datetime(2026, 1, 2, tzinfo=UTC)}
    for row in (late, a_row("aa11")):
        write_row(tmp_path, row)
        fold(tmp_path, SHARD, ["aa11"])
    assert len(list_parts(tmp_path)) == 2
    assert stored_rows(tmp_path)[0]["aa11"].status == "error"
    assert read_table(tmp_path)[0]["status"].to_pylist() == ["error"]


def test_a_dangling_link_is_damage_and_no_endless_loop(tmp_path):
    write_row(tmp_path, a_row("aa11"))
    (tmp_path / "cells" / "aa" / "aa22.parquet").symlink_to("nowhere.parquet")
    table, damaged = read_table(tmp_path)
    assert len(table) == 1 and "aa22.parquet" in damaged[0]


def test_ledgers_of_shards_that_are_not_planned_any_more_go(tmp_path):
    write_row(tmp_path, a_row("aa11"))
    fold(tmp_path, SHARD, ["aa11"])
    drop_untrue(tmp_path, plan(tmp_path, {"toy.simulator.cpu.000-new": ["aa11"]}))
    assert not ledger_file(tmp_path, SHARD).exists()
    assert read_table(tmp_path)[0].num_rows == 1, "the rows themselves stay, for `history`"


def test_many_re_runs_leave_few_parts_and_all_their_rows(tmp_path):
    for index in range(40):
        write_row(tmp_path, a_row(f"{index:04x}"))
        fold(tmp_path, SHARD, [f"{index:04x}"])
    assert len(list_parts(tmp_path)) <= folding.MAX_SMALL_PARTS
    assert read_table(tmp_path)[0].num_rows == 40


def test_a_reader_that_loses_a_file_to_folding_finds_its_rows_in_the_part(tmp_path, monkeypatch):
    from kvfrontier.store import rows as reading

    write_row(tmp_path, a_row("aa11"))
    read, calls = reading.read_cell_file, []

    def folded_meanwhile(path, columns=None, **options):
        calls.append(path)
        fold(tmp_path, SHARD, ["aa11"])
        monkeypatch.setattr(reading, "read_cell_file", read)
        return read(path, columns)

    monkeypatch.setattr(reading, "read_cell_file", folded_meanwhile)
    assert read_table(tmp_path)[0].num_rows == 1 and len(calls) == 1


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    path = tmp_path / "lock"
    with held(path, "measuring"), pytest.raises(Busy, match="measuring is already being done by process"):
        acquire(path, "measuring")
    with held(path, "measuring"):
        pass


def test_a_folder_that_cannot_be_written_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(Unavailable, match="the disk is full"):
        write_row(tmp_path, a_row("aa11"))
    assert not list(tmp_path.rglob("*.tmp"))
