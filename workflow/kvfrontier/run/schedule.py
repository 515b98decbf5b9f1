"""Which cell runs when, on which worker, and what happens to cells whose worker dies or takes too long.

Knows nothing of Ray: a `Pool` hands out workers, this hands out cells.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvfrontier.errors import Unavailable
from kvfrontier.run.worker import Report, Task

logger = logging.getLogger(__name__)

POLL_S = 1.0
MAX_DEATHS_IN_A_ROW = 8
"""So many dead workers and not one cell between them: it is the machine, and the shard stops."""
LOAD_FAILURES = 2
"""So many failed loads and not one cell run: the model cannot be loaded, and the other cells need not find out."""


class Died(Exception):
    """The worker's process ended while it ran a cell."""

    def __init__(self, reason: str, is_oom: bool = False):
        super().__init__(reason)
        self.is_oom = is_oom


class Pool(Protocol):
    """Workers by number. `start` replaces whatever was there; nothing here blocks for longer than it says."""

    def start(self, worker: int) -> None:
        """A fresh worker under this number; one that is there is killed first."""

    def stop(self, worker: int) -> None:
        """End a worker, whatever it is doing."""

    def submit(self, worker: int, task: Task, concurrent_cells: int) -> None:
        """Give an idle worker a cell."""

    def wait(self, timeout_s: float) -> list[tuple[int, Report | Died]]:
        """Whoever has finished or died, after at most `timeout_s`."""


@dataclass
class _InFlight:
    task: Task
    started_s: float


@dataclass
class Schedule:
    """The run of one shard.

    keep: stores the row of a task that no worker could (task, status, reason, class, phase); returns the row's status,
    another one where the worker had just stored its own. done: is told of every finished cell (task, report).
    tick: is called about once a second.
    """

    pool: Pool
    workers: int
    timeout_s: float
    keep: Callable[[Task, str, str, str, str], str]
    done: Callable[[Task, Report], None]
    tick: Callable[[], None] = lambda: None
    _queue: deque[Task] = field(default_factory=deque)
    _running: dict[int, _InFlight] = field(default_factory=dict)
    _worn: set[int] = field(default_factory=set)  # workers to replace before their next cell
    _deaths: set[str] = field(default_factory=set)
    _deaths_in_a_row: int = 0
    _load_failures: int = 0
    _has_loaded: bool = False

    def run(self, shared: Sequence[Task], exclusive: Sequence[Task], seed: int) -> None:
        """Run every task: `shared` ones over all workers, then `exclusive` ones alone on the machine, both shuffled.

        Timed cells see no other cell of this shard; the shuffle keeps drifts of the machine out of the comparisons.
        """
        order = random.Random(seed)
        started = 0
        for tasks, workers in ((shared, self.workers), (exclusive, 1)):
            self._queue = deque(order.sample(list(tasks), len(tasks)))
            wanted = min(workers, len(self._queue))
            if not wanted:
                continue
            for worker in range(wanted, started):
                self.pool.stop(worker)
            for worker in range(started, wanted):
                self.pool.start(worker)
            self._drain(list(range(wanted)))
            started = wanted

    def _drain(self, idle: list[int]) -> None:
        while self._queue or self._running:
            while self._queue and idle:
                worker = idle.pop()
                if worker in self._worn:
                    self.pool.start(worker)
                    self._worn.discard(worker)
                self._running[worker] = _InFlight(self._queue.popleft(), time.monotonic())
                self.pool.submit(worker, self._running[worker].task, len(self._running))
            results = self.pool.wait(self._patience_s())
            self.tick()
            for worker, result in results:
                task = self._running.pop(worker).task
                self._died(worker, task, result) if isinstance(result, Died) else self._finished(worker, task, result)
                idle.append(worker)
            idle.extend(self._end_late_ones())

    def _patience_s(self) -> float:
        ends = [flight.started_s + self.timeout_s for flight in self._running.values()]
        return max(0.0, min([POLL_S, *(end - time.monotonic() for end in ends)]))

    def _finished(self, worker: int, task: Task, report: Report) -> None:
        if report.fatal:
            raise Unavailable(report.fatal)
        self._deaths_in_a_row = 0
        self.done(task, report)
        if report.phase == "load" and report.status in ("error", "oom"):
            self._load_failures += 1
        else:
            self._has_loaded = True
        if self._load_failures >= LOAD_FAILURES and not self._has_loaded:
            self._give_up(report)
        elif report.recycle:
            logger.info("worker %d is replaced before its next cell: %s", worker, report.recycle)
            self._worn.add(worker)

    def _give_up(self, report: Report) -> None:
        reason = f"the model could not be loaded ({LOAD_FAILURES} cells tried): {report.reason}"
        while self._queue:
            self._write(self._queue.popleft(), report.status, reason, report.reason_class, "load")

    def _died(self, worker: int, task: Task, death: Died) -> None:
        """Try the cell once more, in case it was the machine and not the cell."""
        logger.warning("worker %d died while running %s: %s", worker, task.planned.cell_id, death)
        self._worn.add(worker)
        self._deaths_in_a_row += not death.is_oom  # cells too large for the machine may well come in a row
        if self._deaths_in_a_row >= MAX_DEATHS_IN_A_ROW:
            raise Unavailable(f"{self._deaths_in_a_row} workers died one after another; the last one said: {death}")
        if task.planned.fingerprint not in self._deaths:
            self._deaths.add(task.planned.fingerprint)
            self._queue.appendleft(task)
            return
        status, name = ("oom", "WorkerOutOfMemory") if death.is_oom else ("error", "WorkerDied")
        self._write(task, status, f"the worker died twice while running this cell: {death}", name, "run")

    def _end_late_ones(self) -> list[int]:
        now = time.monotonic()
        late = [worker for worker, flight in self._running.items() if now - flight.started_s > self.timeout_s]
        for worker in late:
            task = self._running.pop(worker).task
            self.pool.stop(worker)
            self._worn.add(worker)
            self._write(task, "timeout", f"took longer than {self.timeout_s:g} s", "Timeout", "run")
        return late

    def _write(self, task: Task, status: str, reason: str, reason_class: str, phase: str) -> None:
        status = self.keep(task, status, reason, reason_class, phase)
        self.done(task, Report(status, reason, phase))
