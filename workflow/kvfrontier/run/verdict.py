"""What became of a campaign: its planned cells by status, and each failure with its reason and log."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from kvfrontier.plan.cell import Cell
from kvfrontier.store.ledger import RETRIED, Stored
from kvfrontier.store.rows import read_table

COLUMNS = ("fingerprint", "attempt", "status", "reason", "reason_class", "cell")


class Failed(NamedTuple):
    """A cell that failed in its last attempt."""

    label: str
    status: str
    reason: str
    stored: Stored
    log: Path


class Verdict(NamedTuple):
    """`counts` of planned cells by status (`planned`: no row yet)."""

    counts: Counter[str]
    failures: list[Failed]
    damaged: list[str]


def log_file(campaign_dir: Path, shard: str) -> Path:
    """Where the measuring of a shard is logged."""
    return campaign_dir / "logs" / "measure" / f"{shard}.log"


def verdict(campaign_dir: Path) -> Verdict:
    """Join the plan with the rows of the current fingerprints."""
    plan = pq.read_table(campaign_dir / "plan" / "cells.parquet", columns=["shard", "fingerprint"]).to_pylist()
    table, damaged = read_table(campaign_dir, COLUMNS)
    newest: dict[str, dict] = {}
    for row in table.to_pylist():
        known = newest.get(row["fingerprint"])
        if known is None or row["attempt"] > known["attempt"]:
            newest[row["fingerprint"]] = row
    counts, failures = Counter(), []
    for cell in plan:
        row = newest.get(cell["fingerprint"])
        counts[row["status"] if row else "planned"] += 1
        if row and row["status"] in RETRIED:
            log = log_file(campaign_dir, cell["shard"])
            stored = Stored(row["attempt"], row["status"], row["reason_class"])
            failures.append(Failed(_label(row["cell"]), row["status"], row["reason"] or "", stored, log))
    return Verdict(counts, failures, damaged)


def _label(text: str) -> str:
    cell = Cell.from_dict(json.loads(text))
    return f"{cell.model}, {cell.engine.label}, {cell.strategy.label}, {cell.workload.label}, seed {cell.seed}"
