"""Ask a published campaign: read-only, and closed to files and network outside it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.store.database import database_path

READERS = {".csv": "read_csv", ".tsv": "read_csv", ".parquet": "read_parquet", ".json": "read_json"}
DATABASES = (".duckdb", ".db")


class QueryError(KVFrontierError):
    """DuckDB refused the SQL."""


def open_database(
    campaign_dir: Path, path: Path | None = None, files: Mapping[str, Path] | None = None
) -> duckdb.DuckDBPyConnection:
    """A read-only connection to the published database, or the one at `path`; raises Unavailable where there is none.

    What is asked through it reaches no file, extension, network or variable of this program. files: name -> a file
    that is read before the door is closed, so that SQL finds it under that name and can still write nowhere.
    """
    path = path or database_path(campaign_dir)
    if not path.exists():
        run = f"run `kvfrontier store {campaign_dir.name}`, or the whole campaign"
        raise Unavailable(f"{path} is not there yet: {run}. `kvfrontier query` without --published asks the rows")
    # Without a folder to spill to, a question that does not fit in memory fails instead of filling the results' disk.
    closed = {"python_enable_replacements": False, "autoload_known_extensions": False, "temp_directory": ""}
    try:
        connection = duckdb.connect(path, read_only=True, config={**closed, "autoinstall_known_extensions": False})
    except duckdb.Error as error:
        raise Unavailable(
            f"{path} cannot be opened: {error}. `kvfrontier store {campaign_dir.name}` rebuilds it"
        ) from error
    for name, file in (files or {}).items():
        _bring_in(connection, name, file)
    # DuckDB shares one instance, settings included, among a process's connections to a file: it may be closed already.
    if not connection.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def _bring_in(connection: duckdb.DuckDBPyConnection, name: str, file: Path) -> None:
    """Make a file a temporary table, or attach it where it is a database; raises QueryError."""
    quoted, kind = '"' + name.replace('"', '""') + '"', file.suffix.lower()
    if not file.is_file():
        raise QueryError(f"{file}: no such file")
    if kind not in (*READERS, *DATABASES):
        raise QueryError(f"{file}: expected a file that ends in {', '.join((*READERS, *DATABASES))}")
    try:
        if kind in DATABASES:
            path = str(file).replace("'", "''")
            connection.execute(f"ATTACH '{path}' AS {quoted} (READ_ONLY)")
        else:
            connection.execute(f"CREATE TEMP TABLE {quoted} AS FROM {READERS[kind]}(?)", [str(file)])
    except duckdb.Error as error:
        raise QueryError(f"{file}: {error}") from error


def ask(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """The answer as a table; raises QueryError. Ctrl-C ends a question that takes too long."""
    try:
        statements = len(connection.extract_statements(sql))
        if statements > 1:
            raise QueryError(f"these are {statements} statements; ask one at a time")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(_answer, connection, sql)
            try:
                table = answer.result()
            except KeyboardInterrupt:  # the thread is in DuckDB's own code, which does not hear it
                connection.interrupt()
                raise
    except duckdb.Error as error:
        raise QueryError(f"{error}\nTables: {', '.join(table_names(connection))}") from error
    if table is None:
        raise QueryError(f"the SQL asks nothing.\nTables: {', '.join(table_names(connection))}")
    return table.rename_columns(_distinct(table.column_names))


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table | None:
    relation = connection.sql(sql)
    return relation.to_arrow_table() if relation is not None and relation.columns else None


def table_names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What can be asked, sorted."""
    return [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY ALL").fetchall()]


@contextmanager
def shown_as(kind: str) -> Iterator[None]:
    """Raise QueryError for values that a format, or Python, has no place for: the year 200,000, a union."""
    try:
        yield
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise QueryError(f"the answer cannot be shown as {kind} ({error}): CAST that column AS VARCHAR") from error


def as_csv(table: pa.Table) -> bytes:
    """RFC 4180 with a header; nested values as JSON, NULL as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in table.to_pylist(maps_as_pydicts="strict"):
        writer.writerow(
            json.dumps(value, default=str) if isinstance(value, dict | list) else value for value in row.values()
        )
    return text.getvalue().encode()


def as_json(table: pa.Table) -> bytes:
    """A list of objects, one a row. NaN and infinities, which JSON lacks, become null."""
    rows = [{key: _plain(value) for key, value in row.items()} for row in table.to_pylist(maps_as_pydicts="strict")]
    return (json.dumps(rows, default=str, indent=1, ensure_ascii=False) + "\n").encode()


def as_parquet(table: pa.Table) -> bytes:
    """One Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {"csv": as_csv, "json": as_json, "parquet": as_parquet}


def _distinct(names: list[str]) -> list[str]:
    """`a, a` -> `a, a_2`: rows are dictionaries later."""
    seen: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in seen:
            candidate, number = f"{name}_{number}", number + 1
        seen.append(candidate)
    return seen


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
