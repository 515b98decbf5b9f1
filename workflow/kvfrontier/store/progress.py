"""How far a campaign is: each shard's cells that are done, in flight and left. Every view of a run asks here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from kvfrontier.errors import Unavailable
from kvfrontier.plan.disk import read_index
from kvfrontier.store.attempts import Rows
from kvfrontier.store.heartbeat import Heartbeat, living
from kvfrontier.store.schema import STATUSES
from kvfrontier.units import format_seconds

PLANNED = ("shard", "cell_id", "fingerprint", "status", "model", "engine", "device")
"""Columns of the plan that are needed here."""

ENOUGH_CELLS = 3
"""So many cells of a run say how its pace compares with the estimates."""

Estimator = Callable[[], Sequence[float] | None]
"""Seconds that each planned cell takes, in the plan's order; None where that is not known."""


@dataclass
class ShardProgress:
    """cells = done by status + in_flight + remaining. seconds_left: None where nobody knows."""

    shard: str
    model: str
    engine: str
    device: str
    cells: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    remaining: int = 0
    seconds_left: float | None = None
    beat: Heartbeat | None = None

    @property
    def done(self) -> int:
        return self.counts.total()


def shard_progress(
    campaign_dir: Path, plan: pa.Table, newest: Rows, estimate: Estimator = lambda: None
) -> list[ShardProgress]:
    """One for each shard, in the plan's order."""
    beats, ledgers = living(campaign_dir), {path.stem for path in (campaign_dir / "ledgers").glob("[!.]*.json")}
    max_attempts = _max_attempts(campaign_dir)
    begun_us = {shard: _microseconds(beat.started_at) for shard, beat in beats.items()}
    shards: dict[str, ShardProgress] = {}
    ran: dict[str, list[int]] = {shard: [] for shard in beats}  # places in the plan
    left: dict[str, list[int]] = {}
    columns = (plan.column(name).to_pylist() for name in PLANNED)
    for place, (shard, cell_id, fingerprint, known, *what) in enumerate(zip(*columns, strict=True)):
        found = shards.get(shard) or shards.setdefault(shard, ShardProgress(shard, *what, beat=beats.get(shard)))
        found.cells += 1
        row, beat = newest.get(fingerprint), found.beat
        is_of_this_run = row is not None and beat is not None and row.started_us >= begun_us[shard]
        if row and (is_of_this_run or shard in ledgers or row.stored.is_final(max_attempts)):
            found.counts[row.stored.status] += 1
            if is_of_this_run:
                ran[shard].append(place)
        elif known:
            found.counts[known] += 1
        else:
            is_in_flight = beat is not None and cell_id in beat.in_flight
            found.in_flight += is_in_flight
            found.remaining += not is_in_flight
            left.setdefault(shard, []).append(place)
    seconds = estimate() if left else None
    if seconds is not None and len(seconds) != len(plan):
        seconds = None  # the plan was made again in between
    for name, found in shards.items():
        found.seconds_left = _seconds_left(found, ran.get(name, ()), left.get(name, ()), seconds)
    return list(shards.values())


def _seconds_left(
    shard: ShardProgress, ran: Sequence[int], left: Sequence[int], seconds: Sequence[float] | None
) -> float | None:
    """By the estimates, at the pace the driver has kept so far; by its own count of cells where there are none."""
    if not left:
        return 0.0
    if seconds is None:
        return shard.beat.seconds_left if shard.beat else None
    expected_s = sum(seconds[place] for place in left)
    since = shard.beat.measuring_since if shard.beat else None
    if since is None or len(ran) < ENOUGH_CELLS:
        return expected_s
    took_s = (shard.beat.updated_at - since).total_seconds()
    # The first cell ended as the clock started, so it is no part of what the others took.
    return expected_s * took_s / max(1e-9, sum(seconds[place] for place in ran) * (1 - 1 / len(ran)))


@dataclass(frozen=True)
class Totals:
    """A campaign's shards together. seconds_left: None where nobody knows; `running`: shards being measured."""

    cells: int
    counts: Mapping[str, int]
    in_flight: int
    remaining: int
    seconds_left: float | None
    running: int

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def is_finished(self) -> bool:
        return self.in_flight + self.remaining == 0

    def words(self) -> str:
        """`412 of 1,000 cells, 2 in flight, 586 left, about 3 min left`."""
        parts = [f"{self.done:,} of {self.cells:,} cells"]
        if not self.is_finished:
            parts += [f"{self.in_flight:,} in flight", f"{self.remaining:,} left"]
            if self.seconds_left is not None:
                more = "left" if self.running else "of work"
                parts.append(f"about {format_seconds(max(1, round(self.seconds_left)))} {more}")
            if not self.running:
                parts.append("nothing is being measured now")
        return ", ".join(parts)


def totals(shards: Iterable[ShardProgress]) -> Totals:
    """Shards that wait are taken to follow on as many lanes as are measured now."""
    shards = list(shards)
    running = [shard for shard in shards if shard.beat]
    times = [shard.seconds_left for shard in shards if shard.seconds_left != 0.0]
    seconds_left = None
    if None not in times:
        longest = max((shard.seconds_left for shard in running), default=0.0)
        seconds_left = max(longest, sum(times) / max(1, len(running)))
    return Totals(
        sum(shard.cells for shard in shards),
        sum((shard.counts for shard in shards), Counter()),
        sum(shard.in_flight for shard in shards),
        sum(shard.remaining for shard in shards),
        seconds_left,
        len(running),
    )


_TABLE = pa.schema(
    [(name, pa.string()) for name in ("shard", "model", "engine", "device")]
    + [(name, pa.int64()) for name in ("planned", *STATUSES, "in_flight", "remaining")]
    + [("seconds_left", pa.float64()), ("cells_per_s", pa.float64()), ("host", pa.string())]
    + [("slurm_job_id", pa.string()), ("started_at", pa.timestamp("us")), ("updated_at", pa.timestamp("us"))]
)


def progress_table(shards: Iterable[ShardProgress]) -> pa.Table:
    """What the database's table `progress` holds. Times are plain UTC."""
    return pa.Table.from_pylist([_record(shard) for shard in shards], schema=_TABLE)


def _record(shard: ShardProgress) -> dict[str, object]:
    beat, plain = shard.beat, {name: getattr(shard, name) for name in ("shard", "model", "engine", "device")}
    numbers = {name: getattr(shard, name) for name in ("in_flight", "remaining", "seconds_left")}
    record = {**plain, "planned": shard.cells, **{name: shard.counts[name] for name in STATUSES}, **numbers}
    if beat:
        record |= {name: getattr(beat, name) for name in ("host", "slurm_job_id", "cells_per_s")}
        record |= {name: _microseconds(getattr(beat, name)) for name in ("started_at", "updated_at")}
    return record


def _microseconds(time: datetime) -> int:
    return round(time.timestamp() * 1e6)


def _max_attempts(campaign_dir: Path) -> int:
    try:
        return read_index(campaign_dir).max_attempts
    except Unavailable:
        return 2
