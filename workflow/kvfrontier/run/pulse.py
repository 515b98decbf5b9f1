"""Writes a shard's heartbeat every few seconds, from a thread: a driver that waits for Ray or for a disk lives, too."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvfrontier.run.progress import Progress
from kvfrontier.store.heartbeat import Heartbeat, here, process_mark, remove_heartbeat, write_heartbeat

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
FAREWELL_S = 5.0
"""So long the end waits for a write that hangs (a dead file server); what it leaves behind is known as dead."""

InFlight = Callable[[], Mapping[str, float]]
"""cell_id -> for how many seconds it has been running."""


class Pulse:
    """What beats. Set `in_flight` once cells can be."""

    def __init__(self, campaign_dir: Path, shard: str, progress: Progress):
        self.in_flight: InFlight = dict
        self._campaign_dir, self._shard, self._progress = campaign_dir, shard, progress
        self._started_at = datetime.now(UTC)
        self._has_failed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin; the first heartbeat is there when this returns."""
        self.beat()
        self._thread.start()

    def end(self) -> None:
        """Stop, and take the heartbeat away."""
        self._ended.set()
        self._thread.join(FAREWELL_S)
        remove_heartbeat(self._campaign_dir, self._shard)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.beat()

    def beat(self) -> None:
        """Write once. A disk that refuses costs the heartbeat and nothing else; the log says so, once."""
        try:
            write_heartbeat(self._campaign_dir, self._now())
        except OSError as error:
            if not self._has_failed:
                logger.warning("no heartbeat for `kvfrontier watch`: %s; measuring goes on", error)
            self._has_failed = True

    def _now(self) -> Heartbeat:
        now, progress = datetime.now(UTC), self._progress
        since_first_s = progress.measuring_s
        return Heartbeat(
            shard=self._shard,
            pid=os.getpid(),
            process_started=process_mark(os.getpid()),
            place=here(),
            host=socket.gethostname(),
            started_at=self._started_at,
            updated_at=now,
            total=progress.total,
            settled=progress.settled,
            counts=progress.counts,
            in_flight={cell_id: now - timedelta(seconds=ran_s) for cell_id, ran_s in self.in_flight().items()},
            measuring_since=None if since_first_s is None else now - timedelta(seconds=since_first_s),
            seconds_left=progress.seconds_left,
            slurm_job_id=os.environ.get("SLURM_JOB_ID"),
        )


@contextmanager
def pulse(campaign_dir: Path, shard: str, progress: Progress) -> Iterator[Pulse]:
    """Heartbeats during the block, none after it."""
    beating = Pulse(campaign_dir, shard, progress)
    beating.start()
    try:
        yield beating
    finally:
        beating.end()
