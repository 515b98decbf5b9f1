"""One row, one file: `cells/<ab>/<fingerprint>.parquet`. And every row of a campaign as one table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kvfrontier.metrics import Measurement
from kvfrontier.store.files import write_atomically
from kvfrontier.store.parts import Damaged, list_parts, parse, read_part
from kvfrontier.store.schema import ROW
from kvfrontier.store.sound import require_sound

KEYS = ("fingerprint", "attempt", "started_at")


def cell_file(campaign_dir: Path, fingerprint: str) -> Path:
    """Where the row of that fingerprint lives until it is folded into a part."""
    return campaign_dir / "cells" / fingerprint[:2] / f"{fingerprint}.parquet"


def write_row(campaign_dir: Path, row: Mapping[str, Any]) -> Path:
    """Store one row (keys of `schema.ROW`; maps as dicts, measurements as `Measurement`s or dicts) for good."""
    return write_atomically(cell_file(campaign_dir, row["fingerprint"]), _encode(row))


def as_table(*rows: Mapping[str, Any]) -> pa.Table:
    """Rows in the fixed schema."""
    return pa.Table.from_pylist([_plain(row) for row in rows], schema=ROW)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "parts": list((row.get("parts") or {}).items()),
        "provenance": list((row.get("provenance") or {}).items()),
        "measurements": [
            value._asdict() if isinstance(value, Measurement) else value for value in row.get("measurements") or ()
        ],
    }


def _encode(row: Mapping[str, Any]) -> bytes:
    buffer = pa.BufferOutputStream()
    # One row: dictionaries, statistics and compression only cost time; parts have them.
    pq.write_table(
        as_table(row),
        buffer,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    return buffer.getvalue().to_pybytes()


def loose_files(campaign_dir: Path) -> list[Path]:
    """Cell files that are not folded yet."""
    return sorted((campaign_dir / "cells").glob("*/*.parquet"))


class Among(NamedTuple):
    """The cells of one shard. Their rows are in the parts of its group (`parts.group_of`) or in files of their own."""

    group: str
    fingerprints: Collection[str]


def iter_files(campaign_dir: Path, among: Among | None = None) -> Iterator[Path]:
    """Every file that holds rows, or may hold those of some cells: parts first, then loose cell files."""
    yield from list_parts(campaign_dir, among.group if among else "*")
    if among is None:
        yield from loose_files(campaign_dir)
    else:
        files = (cell_file(campaign_dir, fingerprint) for fingerprint in among.fingerprints)
        yield from (path for path in files if path.exists())


def read_cell_file(path: Path, columns: Sequence[str] | None = None, is_judged: bool = True) -> pa.Table:
    """The row in a loose cell file (see `parts.parse`); raises Damaged, or FileNotFoundError when it is just folded."""
    wanted = columns if columns is None or "fingerprint" in columns else ["fingerprint", *columns]
    row = parse(path, path.read_bytes(), wanted, is_judged)
    if row.column("fingerprint").to_pylist() != [path.stem]:
        raise Damaged(f"{path}: it does not hold the row that it is named after")
    return row if wanted is columns else row.select(columns)


def read_files(
    campaign_dir: Path, columns: Sequence[str] | None = None, among: Among | None = None
) -> tuple[list[pa.Table], list[str]]:
    """One table a readable file, and what is wrong with the others.

    Folding adds a part before it removes what went into it. So when a file has vanished under us, its rows are in a
    part that the listing did not know yet: list again. One that stays in the listing is a dangling link.
    """
    vanished: set[Path] = set()
    while True:
        tables, loose, damaged = [], {}, []
        try:
            for path in iter_files(campaign_dir, among):
                try:
                    if path.parent.name == "store":
                        tables.append(read_part(path, columns))
                    else:
                        loose[path] = read_cell_file(path, columns, is_judged=False)
                except Damaged as damage:
                    damaged.append(str(damage))
                except FileNotFoundError:
                    if path not in vanished:
                        vanished.add(path)
                        raise
                    damaged.append(f"{path}: is listed and cannot be found")
                except OSError as error:
                    damaged.append(f"{path}: cannot be read ({error.strerror})")
            return tables + _sound(loose, damaged), damaged
        except FileNotFoundError:
            continue


def _sound(rows: dict[Path, pa.Table], damaged: list[str]) -> list[pa.Table]:
    """Those of the files' rows that may be believed; a line for each other one goes to `damaged`."""
    if not rows:
        return []
    with suppress(ValueError):
        require_sound(pa.concat_tables(rows.values()))
        return list(rows.values())
    sound = []
    for path, row in rows.items():
        try:
            require_sound(row)
            sound.append(row)
        except ValueError as error:
            damaged.append(f"{path}: {error}")
    return sound


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
