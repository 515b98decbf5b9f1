"""The row: one fixed, versioned Arrow schema for every cell of every campaign."""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1
STATUSES = ("ok", "unsupported", "infeasible", "oom", "timeout", "error")

MEASUREMENT = pa.struct(
    [
        pa.field("metric", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("phase", pa.string()),
        pa.field("repeat", pa.int32()),
        pa.field("request", pa.int32()),
        pa.field("turn", pa.int32()),
        pa.field("layer", pa.int32()),
        pa.field("head", pa.int32()),
    ]
)

ROW = pa.schema(
    [
        # identity
        pa.field("cell_id", pa.string(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("parts", pa.map_(pa.string(), pa.string())),  # part of the fingerprint -> hash or version
        pa.field("cell", pa.string(), nullable=False),  # Cell.as_dict() as JSON: enough to build it again
        # what came of it
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),  # one line for people
        pa.field("reason_class", pa.string()),  # exception class, or the kind of limit
        pa.field("reason_phase", pa.string()),  # plan, load, prefill, decode, ...
        pa.field("reason_detail", pa.string()),  # traceback
        pa.field("reason_bytes", pa.int64()),  # bytes asked for when memory ran out
        pa.field("achieved_budget", pa.float64()),
        pa.field("source", pa.string(), nullable=False),  # measured | model
        # provenance
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("started_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("wall_s", pa.float64()),
        pa.field("provenance", pa.map_(pa.string(), pa.string())),
        # raw values
        pa.field("measurements", pa.list_(MEASUREMENT)),
    ],
    metadata={"kvfrontier_schema": str(SCHEMA_VERSION)},
)
