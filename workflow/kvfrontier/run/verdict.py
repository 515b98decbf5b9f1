"""What became of a campaign: its planned cells by status, and each failure with its reason and the way to its log."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from kvfrontier.plan.believed import read_plan
from kvfrontier.plan.cell import Cell
from kvfrontier.store.attempts import RETRIED, Stored, newest_of
from kvfrontier.store.newest import COLUMNS
from kvfrontier.store.rows import read_files

NAMED_DIGITS = 12
"""Of a cell_id in a command: enough to tell a million cells apart."""


class Failed(NamedTuple):
    """A cell that failed in its last attempt."""

    cell_id: str
    label: str
    status: str
    reason: str
    stored: Stored


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
    plan = read_plan(campaign_dir, ["cell_id", "fingerprint", "cell"]).to_pylist()
    tables, damaged = read_files(campaign_dir, COLUMNS)
    newest = newest_of(tables)
    counts, failures = Counter(), []
    for cell in plan:
        row = newest.get(cell["fingerprint"])
        counts[row.stored.status if row else "planned"] += 1
        if row and row.stored.status in RETRIED:
            what = label(Cell.from_dict(json.loads(cell["cell"])))
            failures.append(Failed(cell["cell_id"], what, row.stored.status, row.reason or "", row.stored))
    return Verdict(counts, failures, damaged)


def label(cell: Cell) -> str:
    """`qwen, torch, h2o(budget=0.3), speed(batch_size=4), seed 1`: what people know a cell by."""
    return f"{cell.model}, {cell.engine.label}, {cell.strategy.label}, {cell.workload.label}, seed {cell.seed}"


def log_command(campaign: str, cell_id: str) -> str:
    """What to type to see why a cell came out as it did."""
    return f"kvfrontier log {cell_id[:NAMED_DIGITS]} {campaign}"
