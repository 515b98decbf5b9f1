"""A plan that lies on disk is looked at before it is believed: files are cut off, overwritten, or made by others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kvfrontier.errors import Unavailable
from kvfrontier.plan.document import NOT_TEXT
from kvfrontier.plan.planned import Shard
from kvfrontier.plan.table import PLAN

SHARD_PATTERN = r"^[A-Za-z0-9%_~][A-Za-z0-9%_~.-]{0,219}$"
"""What `shards.make_shards` calls a shard: the name of a file in whatever folder it is put."""
HASH_PATTERN = r"^[0-9A-Za-z]{1,64}$"


class _Named(BaseModel):
    name: Annotated[str, Field(pattern=SHARD_PATTERN)]


class _Index(BaseModel):
    """Types of index.json; other keys are welcome."""

    model_config = ConfigDict(strict=True, extra="allow")

    format: int
    key: str
    campaign: str
    packages: list[str]
    folders: list[str]
    models: list[str]
    data: list[str]
    notes: list[str]
    timeout_s: Annotated[float, Field(gt=0)]
    max_attempts: Annotated[int, Field(ge=1)]
    dropped: int
    duplicates: int
    workers: int | None
    nodes: Annotated[int, Field(ge=1)]
    shards: Annotated[list[Any], Field(min_length=1)]


_SHARDS = TypeAdapter(list[Shard], config=ConfigDict(strict=True))
_NAMES = TypeAdapter(list[_Named])


def index_of(text: str) -> dict[str, Any] | None:
    """What an index.json says; None for text that is none."""
    try:
        content = _Index.model_validate_json(text).model_dump()
        _SHARDS.validate_python([Shard(**shard) for shard in content["shards"]])
        _NAMES.validate_python(content["shards"])
        if any(NOT_TEXT.search(text) for text in (content["campaign"], *content["models"], *content["notes"])):
            return None
    except (ValidationError, TypeError):
        return None
    return content


def read_plan(campaign_dir: Path, columns: list[str] | None = None, shard: str | None = None) -> pa.Table:
    """Rows of the campaign's cells.parquet, or of one shard, in the schema `PLAN`.

    Raises Unavailable for what is missing or no plan.
    """
    path = campaign_dir / "plan" / "cells.parquet"
    if not path.is_file():
        raise Unavailable(f"{campaign_dir} holds no plan: run `kvfrontier plan {campaign_dir.name}`")
    schema = PLAN if columns is None else pa.schema([PLAN.field(name) for name in columns])
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:  # `read_table` would import pandas
            table = file.read(columns) if shard is None else _rows_of(file, shard, columns)
        table = table.select(schema.names).cast(schema)
        table.validate(full=True)
        for name, pattern in (("shard", SHARD_PATTERN), ("cell_id", HASH_PATTERN), ("fingerprint", HASH_PATTERN)):
            if name in schema.names and pc.all(pc.match_substring_regex(table[name], pattern)).as_py() is False:
                raise ValueError(f"a {name} in it is no name of a file")
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise Unavailable(
            f"{path} is no plan ({reason}). Remove it; `kvfrontier plan {campaign_dir.name}` makes it again"
        ) from error
    return table


def _rows_of(file: pq.ParquetFile, shard: str, columns: list[str] | None) -> pa.Table:
    """Only the row groups that may hold the shard are read."""
    place = file.schema_arrow.names.index("shard")
    limits = [file.metadata.row_group(group).column(place).statistics for group in range(file.metadata.num_row_groups)]
    groups = [
        group
        for group, limit in enumerate(limits)
        if not (limit and limit.has_min_max) or limit.min <= shard <= limit.max
    ]
    table = file.read_row_groups(groups, columns)
    return table.filter(pc.equal(table["shard"], shard))


def is_shard_name(name: str) -> bool:
    """Whether a shard may be called so."""
    return re.fullmatch(SHARD_PATTERN, name) is not None
