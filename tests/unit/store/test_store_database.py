"""The published database: what it holds, and what it survives."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.plan.table import PLAN
from kvfrontier.store.database import build_database, database_path
from kvfrontier.store.query import open_database, table_names
from kvfrontier.store.rows import loose_files
from synthetic import PLAN_SCHEMA, write_campaign

TABLES = {
    "cells",
    "measurements",
    "metrics",
    "summary",
    "configurations",
    "costs",
    "frontier",
    "engines_frontier",
    "guard_rails",
    "history",
    "damaged_files",
    "progress",
    "against",
    "build",
}


def test_the_synthetic_plan_has_the_real_plans_columns():
    assert [field.name for field in PLAN_SCHEMA] == PLAN.names
    assert [field.type for field in PLAN_SCHEMA] == PLAN.types


def test_every_table_is_there_and_answers(connection):
    assert set(table_names(connection)) == TABLES
    for name in TABLES - {"damaged_files", "against", "engines_frontier"}:
        assert connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] > 0, name


def test_every_table_and_column_has_a_comment(connection):
    tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE comment IS NULL").fetchall()
    columns = connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE comment IS NULL AND NOT internal"
    ).fetchall()
    assert (tables, columns) == ([], [])


def test_a_campaign_that_has_not_run_answers_with_planned_cells(tmp_path):
    folder = write_campaign(tmp_path, run=False)
    build_database(folder)
    with open_database(folder) as connection:
        for name in TABLES:
            connection.execute(f"SELECT * FROM {name}").fetchall()
        statuses = dict(connection.execute("SELECT status, count(*) FROM cells GROUP BY ALL").fetchall())
    assert statuses == {"planned": 74, "unsupported": 3}


def test_an_empty_plan_answers_too(tmp_path):
    (tmp_path / "empty" / "plan").mkdir(parents=True)
    pq.write_table(PLAN_SCHEMA.empty_table(), tmp_path / "empty" / "plan" / "cells.parquet")
    build_database(tmp_path / "empty")
    with open_database(tmp_path / "empty") as connection:
        for name in TABLES - {"metrics", "build"}:
            assert connection.execute(f"SELECT * FROM {name}").fetchall() == []


def test_without_a_plan_the_message_says_what_to_run(tmp_path):
    with pytest.raises(Unavailable, match="kvfrontier plan"):
        build_database(tmp_path / "nothing")


def test_a_planned_cell_is_one_row_whatever_is_stored(connection):
    assert connection.execute("SELECT count(*), count(DISTINCT cell_id) FROM cells").fetchall() == [(77, 77)]
    assert connection.execute("SELECT count(*) FROM cells WHERE status = 'planned'").fetchall() == [(1,)]


def test_an_old_fingerprint_is_history_only(connection):
    rows = connection.execute(
        "SELECT is_planned, is_current FROM history WHERE fingerprint = repeat('f', 32)"
    ).fetchall()
    assert rows == [(False, False)]
    assert connection.execute("SELECT count(*) FROM cells WHERE fingerprint = repeat('f', 32)").fetchall() == [(0,)]


def test_budget_filters_as_people_type_it(connection):
    (count,) = connection.execute("SELECT count(*) FROM cells WHERE budget = 0.1").fetchall()[0]
    assert count == 22


def test_parameters_are_typed_columns(connection):
    types = dict(
        connection.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'cells'").fetchall()
    )
    assert types["strategy_num_sinks"] == "BIGINT"
    assert types["strategy_recent_share"] == "DOUBLE"
    assert types["strategy_decode_evict"] == "VARCHAR"
    assert "strategy_budget" not in types
    rows = connection.execute(
        "SELECT DISTINCT strategy_num_sinks FROM cells WHERE strategy = 'streaming_llm'"
    ).fetchall()
    assert rows == [(4,)]


def test_packages_host_and_revision_come_out_of_the_provenance(connection):
    row = connection.execute("SELECT host, git, packages FROM cells WHERE status = 'ok' LIMIT 1").fetchall()
    assert row == [("test-host", "0000000", {"package:torch": "0.0-test"})]


def test_a_damaged_file_is_skipped_and_named(tmp_path, caplog):
    folder = write_campaign(tmp_path, models=("test-alpha",))
    broken = loose_files(folder)[0]
    broken.write_bytes(broken.read_bytes()[:100])
    build_database(folder)
    with open_database(folder) as connection:
        ((name,),) = connection.execute("SELECT file FROM damaged_files").fetchall()
    assert broken.name in name
    assert broken.name in caplog.text


def test_publishing_leaves_readers_of_the_old_file_alone(tmp_path):
    folder = write_campaign(tmp_path, models=("test-alpha",), run=False)
    build_database(folder)
    with duckdb.connect(database_path(folder), read_only=True) as reader:
        write_campaign(tmp_path, models=("test-alpha",))
        build_database(folder)
        assert reader.execute("SELECT count(*) FROM cells WHERE status = 'ok'").fetchall() == [(0,)]
    with open_database(folder) as connection:
        assert connection.execute("SELECT count(*) FROM cells WHERE status = 'ok'").fetchall()[0][0] > 0
    assert not list(folder.glob(".building-*"))


def test_a_value_that_is_not_finite_becomes_null(tmp_path):
    from kvfrontier.store.database import fill
    from kvfrontier.store.rows import read_table

    folder = write_campaign(tmp_path, models=("test-alpha",))
    rows, _ = read_table(folder)
    values = [[{**item, "value": float("nan")} for item in row] for row in rows["measurements"].to_pylist()]
    place = rows.schema.get_field_index("measurements")
    rows = rows.set_column(place, "measurements", pa.array(values, rows.schema.field("measurements").type))
    with duckdb.connect() as connection:
        fill(connection, pq.read_table(folder / "plan" / "cells.parquet"), rows, [])
        assert connection.execute("SELECT count(value) FROM measurements").fetchall() == [(0,)]
        assert connection.execute("SELECT count(*) FROM frontier").fetchall() == [(0,)]
