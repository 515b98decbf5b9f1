"""Files under results/ that are damaged, or made by others: named and skipped by every command, and shown as text."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hostile import CANARY, FUZZ, edited, edits, files_below, refused_in_words
from hypothesis import given
from hypothesis import strategies as st
from kvfrontier.cli import kvfrontier
from kvfrontier.errors import KVFrontierError
from kvfrontier.plan.disk import prepare, read_cells, read_index, read_shard
from kvfrontier.plan.project import Project
from kvfrontier.store.ledger import drop_untrue, stored_rows
from kvfrontier.store.rows import as_table, cell_file, read_table, write_row
from kvfrontier.store.schema import ROW
from synthetic import cells, planned_cell, stored_row, write_campaign
from toy_project import CAMPAIGN, ToyProject, planned_cells, store, toy_plugins

EVIL = (
    "</script><script>alert(1)</script>\x1b[31m\x9b2J=cmd|' /C calc'!A0'; DROP TABLE cells; --\r\n"
    "{{7*7}}<img src=x onerror=alert(1)>\u202e"
)
CELL = next(iter(cells()))
ROW_OF_CELL = stored_row(CELL, planned_cell(CELL), 1)


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    with toy_plugins():
        toys = ToyProject(tmp_path_factory.mktemp("toys"))
        toys.campaign_text(CAMPAIGN)
        yield toys


@pytest.fixture
def campaign(toys, monkeypatch):
    """A plan of three cells with their rows; the results are made anew for each test."""
    shutil.rmtree(toys.root / "results", ignore_errors=True)
    monkeypatch.setenv("KVFRONTIER_ROOT", str(toys.root))
    monkeypatch.delenv("KVFRONTIER_RESULTS", raising=False)
    index = prepare(toys.project, "trial")
    for cell in planned_cells(index):
        store(index, cell, reason=EVIL)
    return index


def table_bytes(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


GOOD = table_bytes(as_table(ROW_OF_CELL), write_page_checksum=True, compression="none", use_dictionary=False)
damage = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, len(GOOD) - 1), st.just(0)),
    st.tuples(st.just("flip"), st.integers(0, len(GOOD) - 1), st.integers(0, 7)),
    st.tuples(st.just("zero"), st.integers(0, len(GOOD) - 1), st.integers(1, 64)),
    st.tuples(st.just("footer"), st.integers(1, 2000), st.integers(0, 7)),
)


def damaged(data: bytes, kind: str, place: int, how: int) -> bytes:
    changed = bytearray(data)
    if kind == "cut":
        del changed[place % len(changed) :]
    elif kind == "flip":
        changed[place % len(changed)] ^= 1 << how
    elif kind == "zero":
        changed[place : place + how] = bytes(how)
    else:
        changed[-(place % len(changed) + 1)] ^= 1 << how
    return bytes(changed)


@FUZZ
@given(damage)
def test_a_damaged_cell_file_is_named_or_still_says_what_it_said(tmp_path_factory, change):
    folder = tmp_path_factory.mktemp("rows")
    path = cell_file(folder, ROW_OF_CELL["fingerprint"])
    path.parent.mkdir(parents=True)
    path.write_bytes(damaged(GOOD, *change))
    with refused_in_words():
        table, lines = read_table(folder, ["fingerprint", "status", "reason_class"])
        newest, _ = stored_rows(folder)
    assert len(table) + len(lines) == 1
    assert all(str(path) in line for line in lines)
    assert set(newest) <= {ROW_OF_CELL["fingerprint"]}
    shutil.rmtree(folder)


WRONG_ROWS = {
    "another cell's": {"fingerprint": "f" * 32},
    "a path": {"fingerprint": "../../../x"},
    "an unknown status": {"status": "EVIL"},
    "an empty status": {"status": ""},
    "an unknown source": {"source": EVIL},
    "attempt 0": {"attempt": 0},
    "attempt 2 billion": {"attempt": 2**31 - 1},
    "year 300,000": {"started_at": pa.scalar(2**62, pa.timestamp("us", tz="UTC"))},
    "year 0": {"started_at": pa.scalar(-(2**62), pa.timestamp("us", tz="UTC"))},
    "an endless time": {"wall_s": float("inf")},
    "a time below zero": {"wall_s": -1.0},
    "no number": {"wall_s": float("nan")},
    "a budget that is none": {"achieved_budget": float("inf")},
    "a key twice": {"provenance": [("host", "a"), ("host", "b")]},
    "a measurement that is none": {"measurements": [{"metric": "ttft_s", "value": float("nan")}]},
}


@pytest.mark.parametrize("changes", WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_a_row_that_no_run_writes_is_damage(tmp_path, changes):
    row = {name: changes.get(name, value) for name, value in as_table(ROW_OF_CELL).to_pylist()[0].items()}
    columns = [pa.array([row[field.name]], field.type) for field in ROW]
    path = cell_file(tmp_path, ROW_OF_CELL["fingerprint"])
    path.parent.mkdir(parents=True)
    path.write_bytes(table_bytes(pa.Table.from_arrays(columns, schema=ROW)))
    table, lines = read_table(tmp_path)
    assert (len(table), len(lines)) == (0, 1) and str(path) in lines[0]


FOREIGN = {
    "nothing": b"",
    "text": b"hello",
    "magic alone": b"PAR1PAR1",
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94",
    "no rows": table_bytes(ROW.empty_table()),
    "no columns": table_bytes(pa.table({})),
    "another schema": table_bytes(pa.table({"fingerprint": [1.5], "status": [[1]]})),
    "two rows": table_bytes(pa.concat_tables([as_table(ROW_OF_CELL)] * 2)),
    "text that is none": table_bytes(
        as_table(ROW_OF_CELL).set_column(
            5,
            ROW.field("reason"),
            pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]),
        )
    ),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_among_the_rows_is_named(tmp_path, content):
    write_row(tmp_path, {**ROW_OF_CELL, "fingerprint": "aa11"})
    path = cell_file(tmp_path, ROW_OF_CELL["fingerprint"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    table, lines = read_table(tmp_path)
    assert (len(table), len(lines)) == (1, 1) and str(path) in lines[0]


@FUZZ
@given(edits)
def test_an_index_that_says_anything_is_made_again(toys, changes):
    index = prepare(toys.project, "trial")
    path = index.campaign_dir / "plan" / "index.json"
    said = json.loads(path.read_text())
    outside = files_below(toys.root)
    path.write_text(json.dumps(edited(said, changes)))
    with refused_in_words():
        found = read_index(index.campaign_dir)
        for shard in found.shards[:2]:
            with refused_in_words():
                read_shard(index.campaign_dir, shard.name)
    made = prepare(toys.project, "trial")
    drop_untrue(made.campaign_dir, made.shards)
    changed = {name for name, data in files_below(toys.root).items() if outside.get(name) != data}
    assert all(name.is_relative_to(index.campaign_dir) for name in changed)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"null", b"\xff\xfe\x00", b"[" * 100_000, b'{"format": 1e999}', b'{"format": 2}']
)
def test_json_files_of_any_content_are_made_again(campaign, content):
    (campaign.campaign_dir / "plan" / "index.json").write_bytes(content)
    with pytest.raises(KVFrontierError, match="run `kvfrontier plan trial`"):
        read_index(campaign.campaign_dir)
    assert prepare(Project.find(), "trial").shards == campaign.shards


@FUZZ
@given(damage)
def test_a_damaged_plan_is_refused_in_words(toys, change):
    index = prepare(toys.project, "trial")
    path = index.campaign_dir / "plan" / "cells.parquet"
    whole = path.read_bytes()
    path.write_bytes(damaged(whole, *change))
    with refused_in_words():
        read_cells(index.campaign_dir)
    with refused_in_words():
        read_shard(index.campaign_dir, index.shards[0].name)
    path.write_bytes(whole)


@pytest.mark.parametrize("name", ["../../../x", "/x", "a/b", "", "x" * 300, "\x1b[2J", "."])
@pytest.mark.parametrize("column", ["shard", "fingerprint"])
def test_a_plan_cannot_name_files_elsewhere(campaign, column, name):
    path = campaign.campaign_dir / "plan" / "cells.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    path.write_bytes(table_bytes(table.set_column(place, table.schema.field(place), pa.array([name] * len(table)))))
    with pytest.raises(KVFrontierError, match="is no plan"):
        read_cells(campaign.campaign_dir)


def call(*arguments: str) -> str:
    """What a command prints, as `main` would have it; any exception but the house's fails the test."""
    result = CliRunner().invoke(kvfrontier, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit | KVFrontierError | OSError | duckdb.Error):
        raise result.exception
    text = result.output + (str(result.exception) if isinstance(result.exception, KVFrontierError) else "")
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text) is None, ascii(text)
    assert "Traceback" not in text
    return text


READING = [
    ("plan", "trial"), ("explain", "trial"), ("check", "trial"), ("store", "trial"), ("frontier", "trial"),
    ("query", "trial", "SELECT reason, * FROM cells"),
]  # fmt: skip


def test_hostile_text_in_rows_reaches_no_terminal(campaign):
    for cell in planned_cells(campaign):
        store(campaign, cell, "error", attempt=2, reason=EVIL, reason_class=EVIL, reason_phase=EVIL, cell=EVIL)
    printed = [call(*arguments) for arguments in READING]
    assert any("31m" in text for text in printed)


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("plan/cells.parquet", "cut"), ("plan/cells.parquet", "folder"), ("plan/index.json", "text"),
        ("plan/index.json", "dangling"), ("trial.duckdb", "cut"), ("trial.duckdb", "text"), ("ledgers", "folder"),
        ("store", "cut"), ("store", "folder"), ("store", "dangling"),
    ],
)  # fmt: skip
def test_every_command_survives_every_broken_file(campaign, place, how):
    call("fold", "trial")
    call("store", "trial")
    path = campaign.campaign_dir / place
    paths = [item for item in path.rglob("*") if item.is_file()] if path.is_dir() else [path]
    for item in paths:
        content = item.read_bytes()
        item.unlink()
        if how == "cut":
            item.write_bytes(content[: len(content) // 2])
        elif how == "text":
            item.write_text(EVIL)
        elif how == "folder":
            item.mkdir()
        else:
            item.symlink_to("nowhere")
    for arguments in READING[2:] + READING[:2]:
        call(*arguments)


class Elements(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def test_the_report_shows_hostile_rows_as_text(tmp_path):
    from kvfrontier.reports.page import write_report
    from kvfrontier.store.database import build_database

    folder = write_campaign(tmp_path, models=(EVIL.replace("\r\n", " "),), evil_reason=EVIL)
    build_database(folder)
    text = write_report(folder).read_text()
    found = Elements(text).found
    assert found.count("script") == 3 and "img" not in found
    assert "alert(1)</script" not in text and "{{7*7}}" in text
    assert all("<script" not in path.read_text() for path in (folder / "figures").glob("*.svg"))


def test_csv_holds_exactly_what_was_stored(campaign, tmp_path):
    """A spreadsheet takes `=...` for a formula; whoever opens rows of others there imports the columns as text."""
    import csv

    out = tmp_path / "out.csv"
    call("store", "trial")
    call("query", "trial", "SELECT reason FROM cells", "--format", "csv", "--out", str(out))
    with out.open(newline="") as file:
        assert {row["reason"] for row in csv.DictReader(file)} == {EVIL}


def test_settings_in_a_plan_cannot_become_sql(tmp_path):
    from kvfrontier.store.database import build_database

    folder = write_campaign(tmp_path, run=False)
    path = folder / "plan" / "cells.parquet"
    table = pq.read_table(path)
    names = [f"x\"', 1); COPY (SELECT 1) TO '{CANARY}'; --", "a b", "", "\x1b", "x" * 10_000, "$.a"]
    parameters = json.dumps(
        {
            "engine": {"name": "torch", **dict.fromkeys(names, 1)},
            "strategy": {"name": "full"},
            "workload": {"name": "speed"},
        }
    )
    place = table.schema.get_field_index("parameters")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array([parameters] * len(table))), path)
    with refused_in_words():
        build_database(folder)
    assert not CANARY.exists()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT DATE '294247-01-10'", "csv"),
        ("SELECT DATE '294247-01-10'", "table"),
        ("SELECT union_value(a := 1)", "parquet"),
    ],
)
def test_values_without_a_place_in_a_format_are_refused_in_words(campaign, tmp_path, sql, kind):
    assert "CAST that column AS VARCHAR" in call(
        "query", "trial", sql, "--format", kind, "--out", str(tmp_path / "out")
    )
    assert not (tmp_path / "out").exists()


def test_json_holds_no_infinities(campaign, tmp_path):
    call("query", "trial", "SELECT 1e400 AS a, 'NaN'::DOUBLE AS b", "--format", "json", "--out", str(tmp_path / "out"))
    assert json.loads((tmp_path / "out").read_text()) == [{"a": None, "b": None}]
