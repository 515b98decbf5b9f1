"""Ledgers: `ledgers/<shard>.json`, what a `measure` job declares as its output. And whether they still tell the truth.

The truth is in the rows: a ledger stands while the store holds, readable, a final row for every cell of its shard.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.plan.believed import read_plan
from kvfrontier.store.files import write_atomically
from kvfrontier.store.rows import Among, read_files

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


class Named(Protocol):
    """Anything with a shard's name."""

    name: str


def ledger_file(campaign_dir: Path, shard: str) -> Path:
    """Where a shard's ledger lives."""
    return campaign_dir / "ledgers" / f"{shard}.json"


def shard_lock(campaign_dir: Path, shard: str) -> Path:
    """The lock of whoever measures or folds a shard."""
    return campaign_dir / "ledgers" / f".{shard}.lock"


def stored_rows(campaign_dir: Path, among: Among | None = None) -> tuple[dict[str, Stored], list[str]]:
    """The newest readable attempt at every fingerprint (or at those of a shard), and a line for every damaged file."""
    tables, damaged = read_files(campaign_dir, ATTEMPT, among)
    return newest_of(tables, among.fingerprints if among else None), damaged


def newest_of(tables: Iterable[pa.Table], fingerprints: Collection[str] | None = None) -> dict[str, Stored]:
    """The newest attempt at every fingerprint, or at each of these; tables with the columns ATTEMPT."""
    newest: dict[str, Stored] = {}
    since: dict[str, tuple[int, int]] = {}  # of two rows of one attempt the later one counts, as in `rows.read_table`
    wanted = None if fingerprints is None else pa.array(list(fingerprints), pa.string())
    for table in tables:
        chosen = table if wanted is None else table.filter(pc.is_in(table.column("fingerprint"), wanted))
        columns = (chosen.column(name).to_pylist() for name in ("fingerprint", "attempt", "status", "reason_class"))
        started_us = chosen.column("started_at").cast(pa.int64()).to_pylist()
        for fingerprint, attempt, status, reason_class, started in zip(*columns, started_us, strict=True):
            if fingerprint not in newest or (attempt, started) > since[fingerprint]:
                newest[fingerprint] = Stored(attempt, status, reason_class)
                since[fingerprint] = attempt, started
    return newest


def write_ledger(campaign_dir: Path, shard: str, fingerprints: Sequence[str], newest: Mapping[str, Stored]) -> Path:
    """Say what became of each cell of a shard (cells without a row are left out)."""
    cells = {
        name: {"status": newest[name].status, "attempt": newest[name].attempt}
        for name in fingerprints
        if name in newest
    }
    # The time makes it another file when the same cells were measured again: Snakemake compares checksums.
    ledger = {
        "shard": shard,
        "written_at": datetime.now(UTC).isoformat(),
        "counts": Counter(cell["status"] for cell in cells.values()),
        "cells": cells,
    }
    return write_atomically(ledger_file(campaign_dir, shard), json.dumps(ledger, indent=1).encode())


def drop_untrue(campaign_dir: Path, shards: Iterable[Named], max_attempts: int = 2) -> list[str]:
    """Remove every ledger that is no longer true, or not in the plan; returns a line for each shard to measure again.

    Called where the plan is made, so that Snakemake sees a missing output and nothing else has to be remembered.
    """
    planned = {shard.name for shard in shards}
    for path in (campaign_dir / "ledgers").glob("*.json"):
        if path.stem not in planned:
            path.unlink(missing_ok=True)
    present = {name for name in planned if ledger_file(campaign_dir, name).exists()}
    if not present:
        return []
    newest, reasons = stored_rows(campaign_dir)
    for name, fingerprints in _planned_fingerprints(campaign_dir).items():
        if name in present and (reason := _why_untrue(fingerprints, newest, max_attempts)):
            ledger_file(campaign_dir, name).unlink(missing_ok=True)
            reasons.append(f"{name}: {reason}")
    return reasons


def _why_untrue(fingerprints: Sequence[str], newest: Mapping[str, Stored], max_attempts: int) -> str:
    missing = sum(name not in newest for name in fingerprints)
    again = sum(name in newest and not newest[name].is_final(max_attempts) for name in fingerprints)
    lines = []
    if missing:
        lines.append(f"the rows of {missing} of {len(fingerprints)} cells are gone or damaged")
    if again:
        lines.append(f"{again} failed cells are tried once more")
    return "; ".join(lines)


def _planned_fingerprints(campaign_dir: Path) -> dict[str, list[str]]:
    table = read_plan(campaign_dir, ["shard", "fingerprint"])
    planned: dict[str, list[str]] = {}
    for shard, fingerprint in zip(
        table.column("shard").to_pylist(), table.column("fingerprint").to_pylist(), strict=True
    ):
        planned.setdefault(shard, []).append(fingerprint)
    return planned
