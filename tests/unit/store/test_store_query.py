"""Asking: formats, errors, and what a query may not do. Every query of the cookbook runs."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kvfrontier.cli import main
from kvfrontier.cli.frontier import command as frontier
from kvfrontier.cli.query import command as query
from kvfrontier.errors import Unavailable
from kvfrontier.store.database import database_path
from kvfrontier.store.query import QueryError, ask, open_database

CHECKOUT = Path(__file__).parents[3]
COOKBOOKS = (CHECKOUT / "README.md", CHECKOUT / "docs" / "sql.md", CHECKOUT / "docs" / "tasks.md")
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
        "RESET enable_external_access",
        "SET lock_configuration = false",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT 1; DROP TABLE cells",
        "CREATE TABLE mine AS FROM cells",
        "WITH gone AS (DELETE FROM cells) FROM gone",
        "WITH out AS (COPY cells TO '/tmp/kvfrontier-must-not-exist.csv') FROM out",
        "EXPLAIN ANALYZE COPY cells TO '/tmp/kvfrontier-must-not-exist.csv'",
        "COPY (PIVOT cells ON status USING count(*)) TO '/tmp/kvfrontier-must-not-exist.csv'",
        "FROM json_execute_serialized_sql(json_serialize_sql("
        "'WITH out AS (COPY cells TO ''/tmp/kvfrontier-must-not-exist.csv'') FROM out'))",
        "EXPORT DATABASE '/tmp/kvfrontier-must-not-exist'",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "FROM '/etc/hostname'",
        "FROM read_parquet('https://example.com/x.parquet')",
        "SELECT getenv('HOME')",
        "FROM connection",  # a variable of this program
        "PRAGMA enable_profiling = 'json'",
        "SELECT * FROM enable_logging(storage = 'file', storage_path = '/tmp/kvfrontier-must-not-exist')",
        "CREATE PERSISTENT SECRET s (TYPE http)",
        "DETACH synthetic",
    ],
)
def test_a_query_can_neither_write_nor_leave_the_file(connection, sql):
    with pytest.raises(QueryError):
        ask(connection, sql)
    assert not list(Path("/tmp").glob("kvfrontier-must-not-exist*"))


def test_a_file_is_read_only_where_it_was_named_and_nothing_can_be_written_even_then(
    project, synthetic_campaign, tmp_path
):
    prices = tmp_path / "it's prices.csv"
    prices.write_text("model,usd\ntest-alpha,2\n")
    sql = "SELECT DISTINCT model, usd FROM cells JOIN price USING (model)"
    assert isinstance(CliRunner().invoke(query, [sql]).exception, QueryError)
    found = CliRunner().invoke(query, ["--with", f"price={prices}", sql, "--format", "csv"])
    assert found.stdout == "model,usd\ntest-alpha,2\n"
    direct = CliRunner().invoke(query, ["--with", f"price={prices}", f"FROM read_csv('{tmp_path}/other.csv')"])
    assert isinstance(direct.exception, QueryError) and "disabled" in str(direct.exception)

    database = database_path(synthetic_campaign)
    before, copy = database.read_bytes(), tmp_path / "other.duckdb"
    copy.write_bytes(before)
    names = ["--with", f"price={prices}", "--with", f"other={copy}"]
    both = "SELECT count(*) AS n FROM cells JOIN other.cells AS theirs USING (cell_id)"
    assert json.loads(CliRunner().invoke(query, [*names, both, "--format", "json"]).stdout) == [{"n": 77}]
    for attack in (
        f"COPY cells TO '{copy}'", "DROP TABLE cells", "DROP TABLE other.cells", "DELETE FROM other.cells",
        f"WITH out AS (COPY price TO '{database}') FROM out", f"ATTACH '{tmp_path}/new.duckdb'",
    ):  # fmt: skip
        assert isinstance(CliRunner().invoke(query, [*names, attack]).exception, QueryError), attack
    assert database.read_bytes() == copy.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "it's prices.csv", "other.duckdb"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("price", "NAME=FILE"),
        ("=x.csv", "NAME=FILE"),
        ("price=/nowhere/x.csv", "no such file"),
        ("price=/etc/hostname", "ends in .csv"),
    ],
)
def test_a_file_that_cannot_be_brought_in_is_told_so(project, word, expected):
    result = CliRunner().invoke(query, ["--with", word, "SELECT 1"])
    assert result.exit_code != 0
    assert expected in result.output + str(result.exception)


def test_ctrl_c_ends_a_question_that_would_take_hours(project):
    endless = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range * b.range % 7 = 3"
    asking = subprocess.Popen([sys.executable, "-c", "from kvfrontier.cli import main\nmain()", "query", endless],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert asking.stderr.readline().startswith("synthetic: ")
    time.sleep(1)
    asking.send_signal(signal.SIGINT)
    _, errors = asking.communicate(timeout=60)
    assert asking.returncode != 0 and "Traceback" not in errors


def test_the_line_about_the_campaign_is_no_part_of_the_answer(project):
    result = CliRunner().invoke(query, ["SELECT 1 AS a", "--format", "csv"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert result.stdout == "a\n1\n"
    assert result.stderr == "synthetic: 76 of 77 cells, 0 in flight, 1 left, nothing is being measured now\n"


def test_a_missing_database_says_what_to_run(tmp_path):
    with pytest.raises(Unavailable, match="kvfrontier store nowhere"):
        open_database(tmp_path / "nowhere")


def test_formats_carry_the_same_rows(project, tmp_path):
    sql = "SELECT strategy, budget, packages, NULL AS nothing, 'a,\"b' AS text FROM cells ORDER BY cell_id LIMIT 3"
    run = CliRunner().invoke
    as_json = json.loads(run(query, [sql, "--format", "json"]).stdout)
    assert list(as_json[0]) == ["strategy", "budget", "packages", "nothing", "text"]
    as_csv = list(csv.DictReader(io.StringIO(run(query, ["synthetic", sql, "--format", "csv"]).stdout)))
    assert [row["text"] for row in as_csv] == ['a,"b'] * 3
    assert run(query, [sql, "--format", "parquet", "--out", str(tmp_path / "x.parquet")]).exit_code == 0
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 3
    table = run(query, [sql]).stdout.splitlines()
    assert table[0].split() == ["strategy", "budget", "packages", "nothing", "text"]
    assert len(table) == 5


def test_a_second_connection_beside_the_first_is_as_closed(synthetic_campaign):
    with open_database(synthetic_campaign), open_database(synthetic_campaign) as second:
        assert ask(second, "SELECT 1 AS a").num_rows == 1
        with pytest.raises(QueryError):
            ask(second, "SELECT * FROM read_csv('/etc/hostname')")


def test_two_columns_of_one_name_both_show(project):
    assert CliRunner().invoke(query, ["SELECT 1 AS a, 2 AS a"]).stdout.split()[:2] == ["a", "a_2"]


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
    assert capsys.readouterr().err.splitlines()[-1].startswith("kvfrontier: [Errno")


def test_parquet_to_a_terminal_is_refused(project):
    result = CliRunner().invoke(query, ["SELECT 1", "--format", "parquet"])
    assert result.exit_code == 2
    assert "--out" in result.output


def test_the_frontier_fits_a_terminal_and_tells_what_failed(project):
    result = CliRunner().invoke(frontier, [])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 120
    for column in ("retention", "as full", "acc", "KL nat", "top-1", "tokens/s", "TTFT"):
        assert column in result.output, "everything beside everything"
    assert "MODELLED" in result.output
    assert "77 cells: 72 ok, 3 unsupported, 1 oom, 1 planned" in result.output
