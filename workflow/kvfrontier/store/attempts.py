"""What attempts at a cell came to, and which of several rows of one fingerprint counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

RETRIED = frozenset({"error", "timeout"})
"""Statuses worth another try in a later run; the others would come out the same."""

ATTEMPT = ("fingerprint", "attempt", "status", "reason_class", "started_at")
"""Columns that say what an attempt came to."""

NOT_THE_CELLS = frozenset({"DeviceMismatch", "Unavailable"})
"""Error classes that tell of the machine, and nothing of the cell: every run tries again, on another one perhaps."""


class Stored(NamedTuple):
    """What the newest attempt at a cell came to."""

    attempt: int
    status: str
    reason_class: str | None = None

    def is_final(self, max_attempts: int) -> bool:
        """False while a later run should try the cell again."""
        has_failed = self.status in RETRIED
        return not has_failed or (self.attempt >= max_attempts and self.reason_class not in NOT_THE_CELLS)


class Row(NamedTuple):
    """started_us: microseconds since 1970. reason: None also where it was not asked for."""

    stored: Stored
    started_us: int
    reason: str | None = None


Rows = dict[str, Row]


def newest_of(tables: Iterable[pa.Table], fingerprints: Collection[str] | None = None) -> Rows:
    """The newest row of every fingerprint, or of each of these; tables with the columns ATTEMPT, perhaps `reason`."""
    newest: Rows = {}
    wanted = None if fingerprints is None else pa.array(list(fingerprints), pa.string())
    for table in tables:
        chosen = table if wanted is None else table.filter(pc.is_in(table.column("fingerprint"), wanted))
        columns = [chosen.column(name).to_pylist() for name in ATTEMPT[:-1]]
        started_us = chosen.column("started_at").cast(pa.int64()).to_pylist()
        reasons = chosen.column("reason").to_pylist() if "reason" in chosen.column_names else [None] * len(chosen)
        for name, attempt, status, reason_class, started, reason in zip(*columns, started_us, reasons, strict=True):
            keep_newer(newest, name, Row(Stored(attempt, status, reason_class), started, reason))
    return newest


def keep_newer(newest: Rows, fingerprint: str, row: Row) -> None:
    """Of two rows of one attempt the later one counts, as in `rows.read_table`."""
    known = newest.get(fingerprint)
    if known is None or (row.stored.attempt, row.started_us) > (known.stored.attempt, known.started_us):
        newest[fingerprint] = row
