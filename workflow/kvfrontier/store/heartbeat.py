"""Heartbeats: `running/<shard>.json`, what a driver says of itself every few seconds while it measures a shard.

No result and no lock: whoever reads one must not depend on it, and one that cannot be written stops nothing.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from pydantic import AwareDatetime, TypeAdapter, ValidationError

FOLDER = "running"
YOUNG = timedelta(minutes=1)
"""A heartbeat from another machine is believed for so long; of a process here we know whether it lives."""


@dataclass(frozen=True)
class Heartbeat:
    """counts: the shard's cells that have ended, by status; `settled` of them had a final row when the driver began.

    in_flight: cell_id -> when it was started. measuring_since: when the first cell ended, so that the loading of the
    model is no part of any rate. place, process_started: see `here`, `process_mark`.
    """

    shard: str
    pid: int
    process_started: str
    place: str
    host: str
    started_at: AwareDatetime
    updated_at: AwareDatetime
    total: int
    settled: int
    counts: Mapping[str, int]
    in_flight: Mapping[str, AwareDatetime] = field(default_factory=dict)
    measuring_since: AwareDatetime | None = None
    seconds_left: float | None = None
    slurm_job_id: str | None = None

    @property
    def cells_per_s(self) -> float | None:
        """How fast cells end; None until two have."""
        cells = sum(self.counts.values()) - self.settled - 1
        if self.measuring_since is None or cells < 1:
            return None
        return cells / max(1e-3, (self.updated_at - self.measuring_since).total_seconds())

    def is_alive(self, now: datetime) -> bool:
        """Whether its driver still runs: known for one on this machine, else taken from the heartbeat's age."""
        if self.place and self.place == here():
            return process_mark(self.pid) == self.process_started
        return abs(now - self.updated_at) < YOUNG


_FORMAT = TypeAdapter(Heartbeat)


def heartbeat_file(campaign_dir: Path, shard: str) -> Path:
    """Where the driver of a shard writes."""
    return campaign_dir / FOLDER / f"{shard}.json"


def write_heartbeat(campaign_dir: Path, beat: Heartbeat) -> None:
    """Replace the shard's heartbeat, whole or not at all; not synced, as after a crash it means nothing. OSError."""
    path = heartbeat_file(campaign_dir, beat.shard)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_bytes(_FORMAT.dump_json(beat))
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_heartbeat(campaign_dir: Path, shard: str) -> None:
    """Called at the driver's end, whatever ended it but `kill -9`."""
    with suppress(OSError):
        heartbeat_file(campaign_dir, shard).unlink(missing_ok=True)


def living(campaign_dir: Path) -> dict[str, Heartbeat]:
    """The shards that are being measured now. Takes no lock; what cannot be read counts as nothing."""
    now = datetime.now(UTC)
    found = (beat for path in _files(campaign_dir) if (beat := _read(path)) is not None)
    return {beat.shard: beat for beat in found if beat.is_alive(now)}


def drivers_key(campaign_dir: Path) -> str:
    """Names the drivers that run now; empty where none does."""
    drivers = sorted((beat.shard, beat.started_at.isoformat()) for beat in living(campaign_dir).values())
    return hashlib.sha256(repr(drivers).encode()).hexdigest()[:32] if drivers else ""


def drop_dead(campaign_dir: Path) -> None:
    """Remove what killed drivers have left behind."""
    now = datetime.now(UTC)
    for path in (*_files(campaign_dir), *(campaign_dir / FOLDER).glob(".*.tmp")):
        beat = _read(path)
        if beat is None or not beat.is_alive(now):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _files(campaign_dir: Path) -> list[Path]:
    return sorted((campaign_dir / FOLDER).glob("[!.]*.json"))


def _read(path: Path) -> Heartbeat | None:
    try:
        return _FORMAT.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


@cache
def here() -> str:
    """This machine since it was started, and the process ids that are seen from here (a container has its own).

    Empty where the kernel tells neither.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def process_mark(pid: int) -> str:
    """When a process was started, in ticks since the machine was: an id alone may be given to another. Empty: gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if status[0] in "ZX" else status[19]
