"""How many cells a worker is given at once: one, or several where handing them out would take longer than they do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvfrontier.run.worker import BUNDLE_S, Report, Task

MAX_BUNDLE = 64
QUICK_S = 0.006
"""A cell that takes longer is handed out, and stored, alone: what it costs around it is little beside it."""


@dataclass
class Bundler:
    """As many quick ones as would take `BUNDLE_S` if all were like the slowest of the last, at most `most`."""

    most: int = MAX_BUNDLE
    _size: int = 1
    _suspects: set[str] = field(default_factory=set)

    def take(self, queue: deque[Task], workers: int) -> list[Task]:
        """Take the next cells off the queue; towards its end fewer, so that all workers have some."""
        most = min(self._size, len(queue) // workers)
        tasks = [queue.popleft()]
        while len(tasks) < most and not self._is_suspect(tasks[0]) and not self._is_suspect(queue[0]):
            tasks.append(queue.popleft())
        return tasks

    def learn(self, reports: Iterable[Report]) -> None:
        """See how long cells take."""
        slowest_s = max(report.wall_s for report in reports)
        self._size = min(self.most, int(BUNDLE_S / max(slowest_s, 1e-9))) if slowest_s < QUICK_S else 1

    def put_back(self, tasks: Sequence[Task], queue: deque[Task]) -> None:
        """Of cells that were lost together nobody knows which it was: each runs again, alone."""
        self._suspects.update(task.planned.fingerprint for task in tasks)
        queue.extendleft(reversed(tasks))

    def _is_suspect(self, task: Task) -> bool:
        return task.planned.fingerprint in self._suspects
