"""Asking: formats, errors, and what a query may not do. Every query of the cookbook runs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kvfrontier.cli import main
from kvfrontier.cli.frontier import command as frontier
from kvfrontier.cli.query import command as query
from kvfrontier.errors import Unavailable
from kvfrontier.store.query import QueryError, ask, open_database

CHECKOUT = Path(__file__).parents[3]
COOKBOOKS = (CHECKOUT / "README.md", CHECKOUT / "docs" / "sql.md")
QUERIES = [query for page in COOKBOOKS for query in re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.fixture
def project(synthetic_campaign, tmp_path, monkeypatch):
    """A checkout whose only campaign is the synthetic one."""
    (tmp_path / "config" / "campaigns").mkdir(parents=True)
    (tmp_path / "config" / "campaigns" / "synthetic.yaml").write_text("name: synthetic\n")
    (tmp_path / "config" / "config.yaml").write_text("campaign: synthetic\n")
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.setenv("KVFRONTIER_RESULTS", str(synthetic_campaign.parent))


@pytest.mark.parametrize("sql", QUERIES, ids=range(len(QUERIES)))
def test_a_query_of_the_cookbook_finds_something(connection, sql):
    assert ask(connection, sql).num_rows > 0


def test_the_cookbook_has_queries():
    assert len(QUERIES) >= 8


def test_a_wrong_query_names_the_tables(connection):
    with pytest.raises(QueryError, match=r"cells, configurations, costs"):
        ask(connection, "SELECT * FROM cels")


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE cells",
        "COPY cells TO '/tmp/kvfrontier-must-not-exist.csv'",
        "SELECT * FROM read_csv('/etc/hostname')",
        "ATTACH '/tmp/kvfrontier-must-not-exist.duckdb'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ],
)
def test_a_query_can_neither_write_nor_leave_the_file(connection, sql):
    with pytest.raises(QueryError):
        ask(connection, sql)


def test_a_missing_database_says_what_to_run(tmp_path):
    with pytest.raises(Unavailable, match="kvfrontier store nowhere"):
        open_database(tmp_path / "nowhere")


def test_formats_carry_the_same_rows(project, tmp_path):
    sql = "SELECT strategy, budget, packages, NULL AS nothing, 'a,\"b' AS text FROM cells ORDER BY cell_id LIMIT 3"
    run = CliRunner().invoke
    as_json = json.loads(run(query, [sql, "--format", "json"]).output)
    assert list(as_json[0]) == ["strategy", "budget", "packages", "nothing", "text"]
    as_csv = list(csv.DictReader(io.StringIO(run(query, ["synthetic", sql, "--format", "csv"]).output)))
    assert [row["text"] for row in as_csv] == ['a,"b'] * 3
    assert run(query, [sql, "--format", "parquet", "--out", str(tmp_path / "x.parquet")]).exit_code == 0
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 3
    table = run(query, [sql]).output.splitlines()
    assert table[0].split() == ["strategy", "budget", "packages", "nothing", "text"]
    assert len(table) == 5


def test_two_columns_of_one_name_both_show(project):
    assert CliRunner().invoke(query, ["SELECT 1 AS a, 2 AS a"]).output.split()[:2] == ["a", "a_2"]


@pytest.mark.parametrize("sql", ["", ";", "-- only a remark"])
def test_sql_that_asks_nothing_is_told_so(project, sql):
    result = CliRunner().invoke(query, ["--", sql])
    assert isinstance(result.exception, QueryError)
    assert "asks nothing" in str(result.exception)


def test_an_answer_that_cannot_be_written_is_one_line(project, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["kvfrontier", "query", "SELECT 1", "--out", "/dev/null/answer.csv"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("kvfrontier: [Errno")


def test_parquet_to_a_terminal_is_refused(project):
    result = CliRunner().invoke(query, ["SELECT 1", "--format", "parquet"])
    assert result.exit_code == 2
    assert "--out" in result.output


def test_the_frontier_fits_a_terminal_and_tells_what_failed(project):
    result = CliRunner().invoke(frontier, [])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 100
    assert "MODELLED" in result.output
    assert "77 cells: 72 ok, 3 unsupported, 1 oom, 1 planned" in result.output
