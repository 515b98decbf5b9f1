"""Parts: Parquet files of many rows, never changed, named by what is in them (`<group>-<hash of the bytes>.parquet`).

The name proves the content, so a truncated or altered part is known without asking anyone.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvfrontier.errors import Unavailable
from kvfrontier.store.files import write_atomically
from kvfrontier.store.schema import ROW
from kvfrontier.store.sound import require_sound

_HASH_DIGITS = 32


class Damaged(Exception):
    """A file that does not hold the rows it should; the message names it and says why. Never fatal."""


def group_of(shard: str) -> str:
    """The shards of one model, engine and device share a group: what the last dotted piece of their names leaves."""
    return hashlib.sha256(shard.rsplit(".", 1)[0].encode()).hexdigest()[:8]


def list_parts(campaign_dir: Path, group: str = "*") -> list[Path]:
    """The parts of a campaign, or of one group, by name."""
    return sorted((campaign_dir / "store").glob(f"{group}-*.parquet"))


def write_part(campaign_dir: Path, group: str, rows: pa.Table) -> Path:
    """Add a part and read it back from disk before saying that it is there."""
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd", row_group_size=100_000)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()[:_HASH_DIGITS]
    path = campaign_dir / "store" / f"{group}-{digest}.parquet"
    write_atomically(path, buffer.getvalue())
    try:
        back = read_part(path, ["fingerprint"])
    except Damaged as damage:
        raise Unavailable(f"{damage}: what was just written could not be read back; check the disk.") from damage
    if len(back) != len(rows):
        raise Unavailable(f"{path}: {len(rows)} rows were written, {len(back)} read back; check the disk.")
    return path


def read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a part; raises Damaged where its bytes are not those it is named by."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest()[:_HASH_DIGITS] != path.stem.rpartition("-")[2]:
        raise Damaged(f"{path}: the content does not match its name (truncated or altered)")
    return parse(path, data, columns)


def parse(path: Path, data: bytes, columns: Sequence[str] | None = None, is_judged: bool = True) -> pa.Table:
    """Rows in the schema of today (a column that an older version lacked is NULL); raises Damaged.

    is_judged: False for a caller that asks `require_sound` of many files' rows at once, which is far quicker.
    """
    schema = ROW if columns is None else pa.schema([ROW.field(name) for name in columns])
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        there = set(file.schema_arrow.names)
        rows = file.read(columns=[name for name in schema.names if name in there], use_threads=False)
        if not rows.schema.equals(schema):  # equal is the rule; a cast would take longer than reading a row did
            for name in set(schema.names) - there:
                rows = rows.append_column(name, pa.nulls(len(rows), schema.field(name).type))
            rows = rows.select(schema.names).cast(schema)
        if is_judged:
            require_sound(rows)
        return rows
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise Damaged(f"{path}: {next(iter(str(error).splitlines()), type(error).__name__)}") from error


def set_aside(path: Path) -> Path:
    """Rename a damaged file so that it is warned about once and kept for whoever wants to look."""
    return path.rename(path.with_name(f"{path.name}.damaged"))
