"""Which cell runs when, on which worker, and what happens to cells whose worker dies or takes too long.

Knows nothing of Ray: a `Pool` hands out workers, this hands out cells.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvfrontier.errors import Unavailable
from kvfrontier.run.bundle import MAX_BUNDLE, Bundler
from kvfrontier.run.loading import LOAD_FAILURES, Loads, engine_of, mixed, others_first
from kvfrontier.run.worker import Report, Task

logger = logging.getLogger(__name__)

POLL_S = 0.5
MAX_LOSSES = 5
"""So often a cell is run again because the node under it was lost, which is none of its doing."""
MAX_DEATHS_IN_A_ROW = 8
"""So many dead workers and not one cell between them: it is the machine, and the shard stops."""


class Died(Exception):
    """The worker's process ended. `is_lost`: with the whole node that it was on."""

    def __init__(self, reason: str, is_oom: bool = False, is_lost: bool = False):
        super().__init__(reason)
        self.is_oom = is_oom
        self.is_lost = is_lost


class Up(NamedTuple):
    """A worker that was started is there and can take a cell."""

    host: str


Event = Up | list[Report] | Died


class Pool(Protocol):
    """Workers by number. `start` replaces whatever was there; nothing here blocks for longer than it says."""

    def start(self, worker: int) -> None:
        """A fresh worker under this number, after killing one that is there. It may wait for a free device."""

    def stop(self, worker: int) -> None:
        """End a worker, whatever it is doing."""

    def submit(self, worker: int, tasks: Sequence[Task], concurrent_cells: int) -> None:
        """Give a worker that is up and idle cells, one after another. It reports the first of them, perhaps not all."""

    def wait(self, timeout_s: float) -> list[tuple[int, Event]]:
        """Whoever has come up, finished or died, after at most `timeout_s`."""


@dataclass
class _InFlight:
    tasks: Sequence[Task]
    started_s: float


@dataclass
class Schedule:
    """The run of one shard.

    keep: stores the row of a task that no worker could (task, status, reason, class, phase); returns the row's status,
    another one where the worker had just stored its own. done: is told of every finished cell (task, report).
    tick: is called about once a second. stored: statuses of the rows that a worker stored before it was lost, or empty.
    """

    pool: Pool
    workers: int
    timeout_s: float
    keep: Callable[[Task, str, str, str, str], str]
    done: Callable[[Task, Report], None]
    tick: Callable[[], None] = lambda: None
    stored: Callable[[Sequence[Task]], list[str]] = lambda tasks: [""] * len(tasks)
    _queue: deque[Task] = field(default_factory=deque)
    _running: dict[int, _InFlight] = field(default_factory=dict)
    _starting: set[int] = field(default_factory=set)
    _idle: list[int] = field(default_factory=list)
    _worn: set[int] = field(default_factory=set)  # of the idle ones: to replace before their next cell
    _bundler: Bundler = field(default_factory=Bundler)
    _deaths: set[str] = field(default_factory=set)
    _losses: Counter[str] = field(default_factory=Counter)
    _deaths_in_a_row: int = 0
    _loads: Loads = field(default_factory=Loads)

    def run(self, shared: Sequence[Task], exclusive: Sequence[Task], seed: int) -> None:
        """Run every task: `shared` ones over all workers, then `exclusive` ones alone on the machine, both `mixed`.

        Timed cells see no other cell of this shard.
        """
        order = random.Random(seed)
        for tasks, workers, most in ((shared, self.workers, MAX_BUNDLE), (exclusive, 1, 1)):
            self._bundler = Bundler(most)
            self._queue = deque(mixed(tasks, order))
            if self._queue:
                self._have_workers(min(workers, len(self._queue)))
                self._drain()

    def _have_workers(self, wanted: int) -> None:
        """Start so many workers, or end those that are too many: first those that never came up."""
        there = sorted([*self._idle, *self._starting], key=lambda worker: (worker in self._starting, worker))
        for worker in there[wanted:]:
            self.pool.stop(worker)
            self._starting.discard(worker)
            self._worn.discard(worker)
        self._idle = [worker for worker in there[:wanted] if worker not in self._starting]
        for worker in range(len(there), wanted):
            self._start(worker)

    def _start(self, worker: int) -> None:
        self.pool.start(worker)
        self._worn.discard(worker)
        self._starting.add(worker)

    def in_flight(self) -> dict[str, float]:
        """cell_id -> for how many seconds it has been running; another thread may ask."""
        now = time.monotonic()
        flights = list(self._running.values())
        return {task.planned.cell_id: now - flight.started_s for flight in flights for task in flight.tasks}

    def _drain(self) -> None:
        while self._queue or self._running:
            self._hand_out()
            events = self.pool.wait(self._patience_s())
            self.tick()
            for worker, event in events:
                self._handle(worker, event)
            self._end_late_ones()

    def _hand_out(self) -> None:
        for worker in [worker for worker in self._idle if worker in self._worn]:
            if len(self._queue) > len(self._starting):
                self._idle.remove(worker)
                self._start(worker)
            elif self._queue:  # those that are starting may wait for the very device that it holds
                self.pool.stop(worker)
        while self._queue and (fresh := [worker for worker in self._idle if worker not in self._worn]):
            self._idle.remove(fresh[-1])
            tasks = self._bundler.take(self._queue, self.workers)
            self._running[fresh[-1]] = _InFlight(tasks, time.monotonic())
            self.pool.submit(fresh[-1], tasks, len(self._running))

    def _patience_s(self) -> float:
        ends = [flight.started_s + self.timeout_s for flight in self._running.values()]
        return max(0.0, min([POLL_S, *(end - time.monotonic() for end in ends)]))

    def _handle(self, worker: int, event: Event) -> None:
        self._starting.discard(worker)
        flight = self._running.pop(worker, None)
        self._idle.append(worker)
        if isinstance(event, Up):
            logger.info("worker %d is up on %s", worker, event.host)
        elif isinstance(event, Died):
            self._died(worker, flight.tasks if flight else [], event)
        elif flight:
            self._queue.extendleft(reversed(flight.tasks[len(event) :]))
            self._bundler.learn(event)
            for task, report in zip(flight.tasks, event, strict=False):
                self._finished(worker, task, report)

    def _finished(self, worker: int, task: Task, report: Report) -> None:
        if report.fatal:
            raise Unavailable(report.fatal)
        self._deaths_in_a_row = 0
        self.done(task, report)
        if self._loads.are_hopeless(task, report):
            self._give_up(task, report)
        if report.recycle:
            logger.info("worker %d is replaced before its next cell: %s", worker, report.recycle)
            self._worn.add(worker)

    def _give_up(self, failed: Task, report: Report) -> None:
        """Of the cells with the same setting of the engine; those of another one may fare better."""
        reason = f"the model could not be loaded ({LOAD_FAILURES} cells tried): {report.reason}"
        same = [task for task in self._queue if engine_of(task) == engine_of(failed)]
        self._queue = deque(task for task in self._queue if engine_of(task) != engine_of(failed))
        for task in same:
            self._write(task, report.status, reason, report.reason_class, "load")

    def _died(self, worker: int, tasks: Sequence[Task], death: Died) -> None:
        """Try the cell once more, in case it was the machine and not the cell."""
        names = ", ".join(task.planned.cell_id for task in tasks)
        doing = f"while running {names}" if tasks else "before its first cell"
        logger.warning("worker %d died %s: %s", worker, doing, death)
        self._worn.add(worker)
        # Cells too large for the machine may well come in a row, and a node takes all its workers with it.
        self._deaths_in_a_row += not (death.is_oom or death.is_lost)
        if self._deaths_in_a_row >= MAX_DEATHS_IN_A_ROW:
            raise Unavailable(f"{self._deaths_in_a_row} workers died one after another; the last one said: {death}")
        task = self._alone(tasks)
        if task is None:
            return
        fingerprint = task.planned.fingerprint
        if death.is_lost and self._losses[fingerprint] < MAX_LOSSES:
            self._losses[fingerprint] += 1
            self._queue.appendleft(task)
            return
        if fingerprint not in self._deaths:
            self._deaths.add(fingerprint)
            self._queue.appendleft(task)
            return
        status, name = ("oom", "WorkerOutOfMemory") if death.is_oom else ("error", "WorkerDied")
        self._lose(task, status, f"the worker died twice while running this cell: {death}", name)

    def _alone(self, tasks: Sequence[Task]) -> Task | None:
        """The one cell that a worker was lost with; those of a bundle are put back."""
        left = []
        for task, status in zip(tasks, self.stored(tasks), strict=True):
            if status:
                self.done(task, Report(status))
            else:
                left.append(task)
        if len(tasks) == 1 and left:
            return left[0]
        self._bundler.put_back(left, self._queue)
        return None

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        late = [worker for worker, flight in self._running.items() if now - flight.started_s > self.timeout_s]
        for worker in late:
            tasks = self._running.pop(worker).tasks
            self.pool.stop(worker)
            self._idle.append(worker)
            self._worn.add(worker)
            if task := self._alone(tasks):
                self._lose(task, "timeout", f"took longer than {self.timeout_s:g} s", "Timeout")

    def _lose(self, task: Task, status: str, reason: str, reason_class: str) -> None:
        self._write(task, status, reason, reason_class, "run")
        self._queue = others_first(self._queue, task)

    def _write(self, task: Task, status: str, reason: str, reason_class: str, phase: str) -> None:
        status = self.keep(task, status, reason, reason_class, phase)
        self.done(task, Report(status, reason, phase))
