"""Ask a published campaign: read-only, and closed to files and network outside it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.store.database import database_path


class QueryError(KVFrontierError):
    """DuckDB refused the SQL."""


def open_database(campaign_dir: Path) -> duckdb.DuckDBPyConnection:
    """A read-only connection to the published database; raises Unavailable where there is none."""
    path = database_path(campaign_dir)
    if not path.exists():
        raise Unavailable(f"{path} is not there yet: run `kvfrontier store {campaign_dir.name}`, or the whole campaign")
    options = {"enable_external_access": False, "autoinstall_known_extensions": False, "lock_configuration": True}
    try:
        return duckdb.connect(path, read_only=True, config=options)
    except duckdb.Error as error:
        raise Unavailable(
            f"{path} cannot be opened: {error}. `kvfrontier store {campaign_dir.name}` rebuilds it"
        ) from error


def ask(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """The answer as a table ; raises QueryError."""
    try:
        relation = connection.sql(sql)
        if relation is None or not relation.columns:
            raise QueryError(f"the SQL asks nothing.\nTables: {', '.join(table_names(connection))}")
        table = relation.to_arrow_table()
    except duckdb.Error as error:
        raise QueryError(f"{error}\nTables: {', '.join(table_names(connection))}") from error
    return table.rename_columns(_distinct(table.column_names))


def table_names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What can be asked, sorted."""
    return [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY ALL").fetchall()]


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
    """A list of objects, one a row. NaN, which JSON lacks, becomes null."""
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
    if isinstance(value, float) and value != value:
        return None
    return value
