"""One row, one file: `cells/<ab>/<fingerprint>.parquet`. And every row of a campaign as one table."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvfrontier.metrics import Measurement
from kvfrontier.store.files import write_atomically
from kvfrontier.store.parts import Damaged, list_parts, parse, read_part
from kvfrontier.store.schema import ROW

KEYS = ("fingerprint", "attempt", "started_at")


def cell_file(campaign_dir: Path, fingerprint: str) -> Path:
    """Where the row of that fingerprint lives until it is folded into a part."""
    return campaign_dir / "cells" / fingerprint[:2] / f"{fingerprint}.parquet"


def write_row(campaign_dir: Path, row: Mapping[str, Any]) -> Path:
    """Store one row (keys of `schema.ROW`; maps as dicts, measurements as `Measurement`s or dicts) for good."""
    return write_atomically(cell_file(campaign_dir, row["fingerprint"]), _encode(row))


def as_table(row: Mapping[str, Any]) -> pa.Table:
    """One row in the fixed schema."""
    plain = {
        **row,
        "parts": list((row.get("parts") or {}).items()),
        "provenance": list((row.get("provenance") or {}).items()),
        "measurements": [
            value._asdict() if isinstance(value, Measurement) else value for value in row.get("measurements") or ()
        ],
    }
    return pa.Table.from_pylist([plain], schema=ROW)


def _encode(row: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    # One row: dictionaries, statistics and compression only cost time; parts have them.
    pq.write_table(
        as_table(row),
        buffer,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    return buffer.getvalue()


def loose_files(campaign_dir: Path) -> list[Path]:
    """Cell files that are not folded yet."""
    return sorted((campaign_dir / "cells").glob("*/*.parquet"))


def iter_files(campaign_dir: Path) -> Iterator[Path]:
    """Every file that holds rows: parts first, then loose cell files."""
    yield from list_parts(campaign_dir)
    yield from loose_files(campaign_dir)


def read_cell_file(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The row in a loose cell file; raises Damaged, or FileNotFoundError when it has just been folded."""
    return parse(path, path.read_bytes(), columns)


def read_files(campaign_dir: Path, columns: Sequence[str] | None = None) -> tuple[list[pa.Table], list[str]]:
    """One table a readable file, and what is wrong with the others.

    Folding adds a part before it removes what went into it. So when a file has vanished under us, its rows are in a
    part that the listing did not know yet: list again. One that stays in the listing is a dangling link.
    """
    vanished: set[Path] = set()
    while True:
        tables, damaged = [], []
        try:
            for path in iter_files(campaign_dir):
                reader = read_part if path.parent.name == "store" else read_cell_file
                try:
                    tables.append(reader(path, columns))
                except Damaged as damage:
                    damaged.append(str(damage))
                except FileNotFoundError:
                    if path not in vanished:
                        vanished.add(path)
                        raise
                    damaged.append(f"{path}: is listed and cannot be found")
                except OSError as error:
                    damaged.append(f"{path}: cannot be read ({error.strerror})")
            return tables, damaged
        except FileNotFoundError:
            continue


def read_table(campaign_dir: Path, columns: Iterable[str] | None = None) -> tuple[pa.Table, list[str]]:
    """All rows of all fingerprints, each attempt once, and a line for every damaged file that was left out."""
    wanted = list(columns) if columns is not None else ROW.names
    read = None if columns is None else list(dict.fromkeys([*wanted, *KEYS]))
    tables, damaged = read_files(campaign_dir, read)
    schema = ROW if read is None else pa.schema([ROW.field(name) for name in read])
    rows = pa.concat_tables([schema.empty_table(), *tables])
    return without_repeats(rows).select(wanted), damaged


def without_repeats(rows: pa.Table) -> pa.Table:
    """Keep the newest of rows with one fingerprint and attempt: a crash between two steps of a fold leaves two."""
    if len(rows.group_by(["fingerprint", "attempt"]).aggregate([])) == len(rows):
        return rows
    numbered = rows.select(KEYS).append_column("row", pa.array(range(len(rows))))
    ordered = numbered.sort_by([("started_at", "descending"), ("row", "ascending")])
    newest = ordered.group_by(["fingerprint", "attempt"], use_threads=False).aggregate([("row", "first")])
    return rows.take(newest.column("row_first").combine_chunks().sort())
