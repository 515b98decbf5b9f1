"""Rows are looked at before they are believed: a file may be damaged, or made by others, and still be Parquet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.store.schema import STATUSES

SOURCES = ("measured", "model")
YEAR_10000_US = 253_402_300_800_000_000
"""Microseconds since 1970 at which Python's and the report's dates end."""
LONGEST_S = 1e9
MOST_ATTEMPTS = 10**6
NAME = r"^[0-9A-Za-z]+$"
"""Of a fingerprint and a cell_id: they become names of files."""


def require_sound(rows: pa.Table) -> None:
    """Raise ValueError where rows hold what no run writes: broken text, an unknown status, a time beyond reason."""
    rows.validate(full=True)
    there = set(rows.column_names)
    for name in ("fingerprint", "cell_id"):
        if name in there:
            _require(pc.match_substring_regex(rows[name], NAME), f"a {name} that is no hash")
    for name, known in (("status", STATUSES), ("source", SOURCES)):
        if name in there:
            _require(pc.is_in(rows[name], pa.array(known)), f"an unknown {name}")
    if "attempt" in there:
        _require(_between(rows["attempt"], 1, MOST_ATTEMPTS), "an impossible attempt")
    if "started_at" in there:
        _require(_between(rows["started_at"].cast(pa.int64()), 0, YEAR_10000_US - 1), "an impossible date")
    if "wall_s" in there:
        _require(_between(rows["wall_s"], 0, LONGEST_S), "an impossible wall_s")
    if "achieved_budget" in there:
        _require(pc.is_finite(rows["achieved_budget"]), "an achieved_budget that is no number")
    for name in ("parts", "provenance"):
        if name in there:
            _require_distinct_keys(rows[name], name)
    if "measurements" in there:
        values = pc.struct_field(pc.list_flatten(rows["measurements"]), "value")
        _require(pc.is_finite(values), "a measurement that is no number")


def _between(column: pa.ChunkedArray, least: float, most: float) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))


def _require(holds: pa.ChunkedArray, wrong: str) -> None:
    """NULL is for the schema to allow or not."""
    if pc.all(holds).as_py() is False:
        raise ValueError(f"it holds {wrong}")


def _require_distinct_keys(column: pa.ChunkedArray, name: str) -> None:
    """DuckDB refuses a map that has a key twice, and with it the whole table."""
    for chunk in column.chunks:
        offsets = chunk.offsets.to_numpy()
        keys = chunk.keys.slice(offsets[0], offsets[-1] - offsets[0])
        if len(chunk) == 1:  # a cell file's; what follows takes half a millisecond whatever the number of rows
            is_distinct = len(set(keys.to_pylist())) == len(keys)
        else:
            entries = pa.table({"row": np.repeat(np.arange(len(chunk)), np.diff(offsets)), "key": keys})
            is_distinct = len(entries.group_by(["row", "key"]).aggregate([])) == len(entries)
        if not is_distinct:
            raise ValueError(f"it holds {name} with a name twice")
