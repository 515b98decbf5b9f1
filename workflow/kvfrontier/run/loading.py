"""Loading takes longer than most cells: in which order cells run for it, and when it is tried no more."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from kvfrontier.plan.cell import Component
from kvfrontier.run.worker import Report, Task

LOAD_FAILURES = 2
"""So many failed loads of an engine and not one cell run: its other cells need not find out."""


def engine_of(task: Task) -> Component:
    """The engine in the setting that the task's process must have loaded."""
    return task.planned.cell.engine


def mixed(tasks: Sequence[Task], order: random.Random) -> list[Task]:
    """Shuffled, which keeps drifts of the machine out of the comparisons; but each engine's in a row."""
    engines: dict[Component, list[Task]] = {}
    for task in order.sample(list(tasks), len(tasks)):
        engines.setdefault(engine_of(task), []).append(task)
    return list(chain.from_iterable(engines.values()))


def others_first(queue: Iterable[Task], lost: Task) -> deque[Task]:
    """The queue after a cell that cost its worker. The next one has to load anyway, and it may be the setting of the
    engine that no worker survives: cells of the others must not wait for it."""
    return deque(sorted(queue, key=lambda task: engine_of(task) == engine_of(lost)))


@dataclass
class Loads:
    """What became of the loads of a shard, engine by engine."""

    _failures: Counter[Component] = field(default_factory=Counter)
    _loaded: set[Component] = field(default_factory=set)

    def are_hopeless(self, task: Task, report: Report) -> bool:
        """Learn of a finished cell; whether its engine has failed to load often enough, and never did."""
        engine = engine_of(task)
        if report.phase == "load" and report.status in ("error", "oom"):
            self._failures[engine] += 1
        else:
            self._loaded.add(engine)
        return self._failures[engine] >= LOAD_FAILURES and engine not in self._loaded
