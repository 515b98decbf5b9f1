"""A campaign while it is measured, frame by frame. Reads only, takes no lock, works from any machine that sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from kvfrontier.plan.disk import read_cells
from kvfrontier.run.cell_log import Failure, label_of, latest_failures
from kvfrontier.store.newest import Newest
from kvfrontier.store.progress import PLANNED, Estimator, ShardProgress, Totals, shard_progress, totals

FAILURES = 3
ESTIMATED_FOR_S = 60.0
"""Estimates improve as rows come in; they are made anew so often, and at most for a twentieth of the time."""


class Flight(NamedTuple):
    """A cell that is running."""

    cell_id: str
    label: str
    shard: str
    since: datetime

    def seconds(self, now: datetime) -> float:
        return max(0.0, (now - self.since).total_seconds())


class Frame(NamedTuple):
    """`flights`: the longest first. `failures`: the latest first."""

    campaign: str
    at: datetime
    totals: Totals
    shards: list[ShardProgress]
    flights: list[Flight]
    failures: list[Failure]


class Monitor:
    """Takes frames of one campaign; what cannot have changed since the last one is not read again."""

    def __init__(self, campaign_dir: Path, estimate: Estimator):
        self._campaign_dir, self._estimate = campaign_dir, estimate
        self._newest = Newest(campaign_dir)
        self._plan: pa.Table | None = None
        self._plan_mark: tuple[int, int] | None = None
        self._seconds: Sequence[float] | None = None
        self._estimate_again_s = 0.0

    def frame(self) -> Frame:
        """As things are now. Raises Unavailable where there is no plan."""
        plan, rows = self._read_plan(), self._newest.read()
        shards = shard_progress(self._campaign_dir, plan, rows, self._estimates)
        failures = latest_failures(plan, rows, FAILURES)
        now = datetime.now(UTC)
        return Frame(self._campaign_dir.name, now, totals(shards), shards, _flights(plan, shards), failures)

    def _read_plan(self) -> pa.Table:
        path = self._campaign_dir / "plan" / "cells.parquet"
        mark = (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None
        if self._plan is None or mark != self._plan_mark:
            self._plan = read_cells(self._campaign_dir).select([*PLANNED, "cell"])
            self._plan_mark, self._seconds, self._estimate_again_s = mark, None, 0.0
        return self._plan

    def _estimates(self) -> Sequence[float] | None:
        start_s = time.monotonic()
        if start_s >= self._estimate_again_s:
            self._seconds = self._estimate()
            end_s = time.monotonic()
            self._estimate_again_s = end_s + max(ESTIMATED_FOR_S, 20 * (end_s - start_s))
        return self._seconds


def _flights(plan: pa.Table, shards: Sequence[ShardProgress]) -> list[Flight]:
    flying = {
        cell_id: (since, shard.shard)
        for shard in shards
        if shard.beat
        for cell_id, since in shard.beat.in_flight.items()
    }
    if not flying:
        return []
    places = {cell_id: place for place, cell_id in enumerate(plan.column("cell_id").to_pylist()) if cell_id in flying}
    found = [
        Flight(cell_id, label_of(plan.column("cell")[place].as_py()), flying[cell_id][1], flying[cell_id][0])
        for cell_id, place in places.items()
    ]
    return sorted(found, key=lambda flight: flight.since)


def as_dict(frame: Frame) -> dict[str, Any]:
    """For `--json`: times as ISO 8601."""
    total = frame.totals
    return {
        "campaign": frame.campaign,
        "at": frame.at.isoformat(),
        "cells": total.cells,
        "done": total.done,
        "by_status": dict(total.counts),
        "in_flight": total.in_flight,
        "left": total.remaining,
        "seconds_left": total.seconds_left,
        "is_finished": total.is_finished,
        "running_shards": total.running,
        "shards": [_shard_dict(shard) for shard in frame.shards],
        "cells_in_flight": [
            {**flight._asdict(), "since": flight.since.isoformat(), "seconds": flight.seconds(frame.at)}
            for flight in frame.flights
        ],
        "failures": [{**item._asdict(), "started_at": item.started_at.isoformat()} for item in frame.failures],
    }


def _shard_dict(shard: ShardProgress) -> dict[str, Any]:
    names = ("shard", "model", "engine", "device", "cells", "done", "in_flight", "seconds_left")
    plain = {name: getattr(shard, name) for name in names}
    plain |= {"by_status": dict(shard.counts), "left": shard.remaining, "is_running": shard.beat is not None}
    if shard.beat:
        plain |= {name: getattr(shard.beat, name) for name in ("host", "pid", "slurm_job_id", "cells_per_s")}
        plain |= {name: getattr(shard.beat, name).isoformat() for name in ("started_at", "updated_at")}
    return plain
