"""Ledgers: `ledgers/<shard>.json`, what a `measure` job declares as its output. And whether they still tell the truth.

The truth is in the rows: a ledger stands while the store holds, readable, a final row for every cell of its shard.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from kvfrontier.plan.believed import read_plan
from kvfrontier.store.attempts import ATTEMPT, Stored, newest_of
from kvfrontier.store.files import write_atomically
from kvfrontier.store.rows import Among, read_files


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
    newest = newest_of(tables, among.fingerprints if among else None)
    return {name: row.stored for name, row in newest.items()}, damaged


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
