"""What is known of a cell: its newest row, and what the logs say around it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.errors import KVFrontierError, did_you_mean
from kvfrontier.plan.cell import Cell
from kvfrontier.plan.disk import read_cells
from kvfrontier.run.verdict import label, log_file
from kvfrontier.store.attempts import Rows
from kvfrontier.store.heartbeat import living
from kvfrontier.store.rows import read_table

FAILED = ("error", "timeout", "oom")
ROW_COLUMNS = (
    *("cell_id", "fingerprint", "cell", "attempt", "status", "reason", "reason_class", "reason_phase"),
    *("reason_detail", "started_at", "wall_s", "provenance"),
)
PLAN_COLUMNS = ("shard", "cell_id", "fingerprint", "cell", "status", "reason")
SHOWN = 8
AROUND = 3
_ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


class NoSuchCell(KVFrontierError):
    """No cell, or several, begin so."""


class Failure(NamedTuple):
    """A planned cell whose newest row tells of a failure."""

    cell_id: str
    label: str
    status: str
    reason: str
    attempt: int
    started_at: datetime


@dataclass(frozen=True)
class CellRecord:
    """planned: its line of the plan, or empty. row: the newest, or empty. lines: of `log`, around the cell."""

    cell_id: str
    cell: Cell
    planned: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    in_flight_since: datetime | None = None
    log: Path | None = None
    lines: tuple[str, ...] = ()
    slurm_log: Path | None = None

    @property
    def status(self) -> str:
        if self.in_flight_since:
            return "in flight"
        return self.row.get("status") or self.planned.get("status") or "planned"

    @property
    def provenance(self) -> dict[str, str]:
        return dict(self.row.get("provenance") or ())


def latest_failures(plan: pa.Table, newest: Rows, most: int) -> list[Failure]:
    """The last `most` failures of planned cells (columns needed: cell_id, fingerprint, cell), the latest first."""
    names = plan.column("fingerprint").to_pylist()
    failing = [(newest[name], place) for place, name in enumerate(names) if _has_failed(newest, name)]
    failing.sort(key=lambda pair: pair[0].started_us, reverse=True)
    return [
        Failure(
            plan.column("cell_id")[place].as_py(),
            label_of(plan.column("cell")[place].as_py()),
            row.stored.status,
            row.reason or "",
            row.stored.attempt,
            datetime.fromtimestamp(row.started_us / 1e6, UTC),
        )
        for row, place in failing[:most]
    ]


def _has_failed(newest: Rows, fingerprint: str) -> bool:
    row = newest.get(fingerprint)
    return row is not None and row.stored.status in FAILED


def find_cell(campaign_dir: Path, prefix: str) -> CellRecord:
    """The cell whose cell_id or fingerprint begins with `prefix`; raises NoSuchCell where none or several do."""
    prefix = prefix.strip().lower()
    plan = read_cells(campaign_dir).select(PLAN_COLUMNS)
    rows, _ = read_table(campaign_dir, ROW_COLUMNS)
    names = ("cell_id", "fingerprint")
    columns = [pa.chunked_array([*plan[name].chunks, *rows[name].chunks], pa.string()) for name in names]
    matches = [pc.starts_with(column, prefix) for column in columns]
    cell_ids = columns[0].filter(pc.or_(*matches)).unique().to_pylist()
    if not prefix or len(cell_ids) != 1:
        raise NoSuchCell(_not_one(campaign_dir.name, prefix, cell_ids, columns, plan))
    cell_id = cell_ids[0]
    planned = next(iter(plan.filter(pc.equal(plan["cell_id"], cell_id)).to_pylist()), {})
    own = rows.filter(pc.equal(rows["cell_id"], cell_id)).to_pylist()
    asked = [row for row in own if row["fingerprint"].startswith(prefix)]  # a version of it, rather than the cell
    current = [row for row in own if row["fingerprint"] == planned.get("fingerprint")]
    row = max(asked or current or own, key=lambda row: (row["started_at"], row["attempt"]), default={})
    return _record(campaign_dir, cell_id, planned, row, len(own))


def _not_one(campaign: str, prefix: str, cell_ids: list[str], columns: list[pa.ChunkedArray], plan: pa.Table) -> str:
    if not prefix or not cell_ids:
        known = {name[: max(4, len(prefix))] for column in columns for name in column.to_pylist()}
        hint = did_you_mean(prefix, known) if prefix else ""
        query = f'kvfrontier query {campaign} "SELECT cell_id, strategy_label, workload_label FROM cells"'
        told = f"no cell of {campaign} has a cell_id or fingerprint that begins with '{prefix}'."
        return " ".join(filter(None, (told, hint, f"All of them: {query}")))
    cells = dict(zip(plan["cell_id"].to_pylist(), plan["cell"].to_pylist(), strict=True))
    lines = [f"  {name}  {label_of(cells[name]) if name in cells else '(no longer planned)'}" for name in cell_ids]
    more = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    told = f"{len(cell_ids)} cells of {campaign} begin with '{prefix}'; give more digits:"
    return "\n".join([told, *lines[:SHOWN], *more])


def _record(
    campaign_dir: Path, cell_id: str, planned: Mapping[str, Any], row: Mapping[str, Any], rows: int
) -> CellRecord:
    beat = living(campaign_dir).get(planned.get("shard", ""))
    since = beat.in_flight.get(cell_id) if beat else None
    log, lines = _log_of(campaign_dir, planned.get("shard", ""), cell_id)
    job = dict(row.get("provenance") or ()).get("slurm_job_id", "")
    return CellRecord(
        cell_id,
        _cell(row.get("cell") or planned["cell"]),
        planned,
        row,
        rows,
        since,
        log,
        lines,
        next(iter((campaign_dir.parent / "slurm").glob(f"**/{job}.log")), None) if job.isdigit() else None,
    )


def label_of(text: str) -> str:
    """Label of a cell that is given as JSON."""
    return label(_cell(text))


def _cell(text: str) -> Cell:
    return Cell.from_dict(json.loads(text))


def _log_of(campaign_dir: Path, shard: str, cell_id: str) -> tuple[Path | None, tuple[str, ...]]:
    """The log that names the cell: its shard's, or an older one of when other cells were beside it; and the lines."""
    own = log_file(campaign_dir, shard) if shard else None
    others = sorted(_logs(campaign_dir), key=lambda path: -path.stat().st_mtime)
    for path in ([own] if own and own.is_file() else []) + [path for path in others if path != own]:
        content = path.read_bytes()
        if cell_id.encode() in content:
            return path, tuple(_around(content.decode(errors="replace").splitlines(), cell_id))
    if own and own.is_file():  # it says why its cells were not even begun
        return own, tuple(own.read_text(errors="replace").splitlines()[-2 * AROUND :])
    return own, ()


def _logs(campaign_dir: Path) -> Iterable[Path]:
    return (campaign_dir / "logs" / "measure").glob("*.log")


def _around(lines: list[str], cell_id: str) -> list[str]:
    """Entries that name the cell and some before and after; not the tracebacks between, which the row has."""
    entries = [line for line in lines if _ENTRY.match(line) and not line.endswith("Traceback (most recent call last):")]
    places = [place for place, line in enumerate(entries) if cell_id in line]
    wanted = sorted({near for place in places for near in range(place - AROUND, place + AROUND + 1)})
    return [entries[place] for place in wanted if 0 <= place < len(entries)]
