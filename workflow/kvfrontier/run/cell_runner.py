"""Run one cell on a loaded model: engine x strategy x workload in, one row out. Whatever happens becomes a row."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kvfrontier.metrics import (
    ACHIEVED_BUDGET,
    KV_DEVICE_BYTES,
    KV_DISK_BYTES,
    KV_FORMULA_BYTES,
    KV_HOST_BYTES,
    METRICS,
    Measurement,
)
from kvfrontier.plan.build import instantiate
from kvfrontier.plan.catalog import load_devices, load_models
from kvfrontier.plan.environment import require_here
from kvfrontier.run.failure import Failure, ImpossibleValue, Overspent, describe
from kvfrontier.run.outcome import outcome_row
from kvfrontier.run.provenance import entry_facts, machine_facts, memory_facts, moment_facts, package_facts

if TYPE_CHECKING:
    from kvfrontier.engines.base import Engine, Session
    from kvfrontier.plan.cell import Cell
    from kvfrontier.plan.planned import PlannedCell
    from kvfrontier.plan.project import Project


@dataclass
class Sessions:
    """The one model that this process holds. A shard shares it, so each setting of the engine loads it once."""

    project: Project
    _key: tuple | None = None
    _session: Session | None = None

    def get(self, cell: Cell, engine: Engine) -> Session:
        """The session for the cell's model, engine and device; another one that is open is closed first."""
        key = (cell.model, cell.engine, cell.device)
        if key != self._key:
            self.close()
            model = load_models(self.project)[cell.model]
            device = load_devices(self.project)[cell.device]
            require_here(engine.environment_on(device))
            self._session, self._key = engine.load(model, device), key
        return self._session

    @property
    def loaded(self) -> tuple | None:
        """Model, engine and device of the open session; None: there is none."""
        return self._key

    def forget(self) -> None:
        """Let go of what workloads remembered between cells."""
        if self._session is not None:
            self._session.memo.clear()

    def close(self) -> None:
        """Free the model."""
        if self._session is not None:
            self._session.close()
        self._key = self._session = None


@dataclass
class _Run:
    """What is known so far, also when the cell fails half-way."""

    phase: str = "load"
    measurements: list[Measurement] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    memories: dict[str, str] = field(default_factory=dict)


def run_cell(planned: PlannedCell, sessions: Sessions, attempt: int = 1, concurrent_cells: int = 1) -> dict[str, Any]:
    """The row of one cell. Never raises for what the cell itself does; measurements taken before a failure are kept."""
    run, failure = _Run(), None
    started_at, start_s = datetime.now(UTC), time.perf_counter()
    try:
        _measure(planned, sessions, run)
    except Exception as error:  # noqa: BLE001 - the one place: any failure of a cell is a row, and the others go on
        failure = describe(error, run.phase)
    wall_s = time.perf_counter() - start_s
    project = sessions.project
    facts = {
        **machine_facts(project.root),
        **entry_facts(project, planned.cell, run.data),
        **package_facts(run.packages),
        **moment_facts(concurrent_cells),
        **run.memories,
    }
    if run.dropped:
        facts["not_finite"] = ", ".join(f"{metric}: {count}" for metric, count in sorted(run.dropped.items()))
    return outcome_row(
        planned,
        attempt,
        failure.status if failure else "ok",
        **_reason(failure),
        started_at=started_at,
        wall_s=wall_s,
        achieved_budget=_mean(value.value for value in run.measurements if value.metric == ACHIEVED_BUDGET),
        provenance=facts,
        measurements=run.measurements,
    )


def _measure(planned: PlannedCell, sessions: Sessions, run: _Run) -> None:
    engine, strategy, workload = instantiate(planned.cell)
    run.packages, run.data = (*engine.packages, *workload.packages), workload.data()
    run.memories = memory_facts(sessions.project, planned.cell, strategy)
    session = sessions.get(planned.cell, engine)
    run.phase = "run"
    for value in workload.run(session, strategy, planned.cell.seed):
        if math.isfinite(value.value):
            run.measurements.append(value)
        else:  # NULL, never NaN: DuckDB compares NaN wrongly, so the value is left out and counted
            run.dropped[value.metric] = run.dropped.get(value.metric, 0) + 1
    run.phase = "check"
    check_possible(run.measurements)
    check_within_budget(run.measurements)


def check_possible(measurements: list[Measurement]) -> None:
    """Raise ImpossibleValue for times and bytes below zero, unknown metrics, or a cell without any value."""
    if not measurements:
        raise ImpossibleValue("the workload measured nothing")
    for value in measurements:
        if value.metric not in METRICS:
            raise ImpossibleValue(f"the metric '{value.metric}' is not declared in metrics.py")
        if value.value < 0 and METRICS[value.metric].unit in ("s", "B", "tokens"):
            raise ImpossibleValue(f"{value.metric} is {value.value:g} {METRICS[value.metric].unit}, below zero")


def check_within_budget(measurements: list[Measurement]) -> None:
    """Raise Overspent where the kept bytes exceed those that the strategy's own formula allows (same phase and repeat).

    Without this a strategy that never acted would be measured as the full cache under another name.
    """
    allowed = _by_place(measurements, KV_FORMULA_BYTES)
    for place, kept in _by_place(measurements, KV_DEVICE_BYTES, KV_HOST_BYTES, KV_DISK_BYTES).items():
        if kept > allowed.get(place, math.inf):
            phase = f" after {place[0]}" if place[0] else ""
            raise Overspent(f"kept {kept:.0f} B of keys and values{phase}, its formula allows {allowed[place]:.0f} B")


def _by_place(measurements: list[Measurement], *metrics: str) -> Mapping[tuple, float]:
    """Sums over these metrics by phase and repeat."""
    sums: Counter[tuple] = Counter()
    for value in measurements:
        if value.metric in metrics:
            sums[value.phase, value.repeat] += value.value
    return sums


def _reason(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {}
    return {
        "reason": failure.reason,
        "reason_class": failure.reason_class,
        "phase": failure.phase,
        "detail": failure.detail,
        "asked_bytes": failure.asked_bytes,
    }


def _mean(values: Iterable[float]) -> float | None:
    taken = list(values)
    return sum(taken) / len(taken) if taken else None
