"""Measure one shard: settle what needs no model, run what is missing, fold the rows, write the ledger."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvfrontier.plan.build import instantiate
from kvfrontier.plan.catalog import load_devices
from kvfrontier.plan.planned import PlannedCell
from kvfrontier.plan.project import Project
from kvfrontier.run.outcome import outcome_row
from kvfrontier.run.placement import place
from kvfrontier.run.progress import Progress
from kvfrontier.run.provenance import driver_facts
from kvfrontier.run.pulse import Pulse, pulse
from kvfrontier.run.ray_dispatch import ray_pool
from kvfrontier.run.schedule import Schedule
from kvfrontier.run.worker import Report, Task
from kvfrontier.store.attempts import RETRIED, Stored
from kvfrontier.store.fold import fold
from kvfrontier.store.ledger import shard_lock, stored_rows
from kvfrontier.store.lock import held
from kvfrontier.store.parts import Damaged, group_of
from kvfrontier.store.rows import Among, cell_file, read_cell_file, write_row
from kvfrontier.units import format_seconds

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How long a cell may take and how often it is tried (over runs, not within one)."""

    timeout_s: float = 600.0
    max_attempts: int = 2


@dataclass(frozen=True)
class Shard:
    """A shard's cells, and where their rows go."""

    project: Project
    campaign_dir: Path
    name: str
    cells: Sequence[PlannedCell]

    @property
    def fingerprints(self) -> list[str]:
        return [cell.fingerprint for cell in self.cells]


def measure(
    shard: Shard, limits: Limits, say: Callable[[str], None], workers: int | None = None, address: str = ""
) -> Counter[str]:
    """Bring every cell of a shard to a final row or a fresh attempt; returns its cells by status.

    Rows that are stored already are not measured again, so this goes on where an interrupted run was stopped.
    """
    with held(shard_lock(shard.campaign_dir, shard.name), f"measuring {shard.name}", say):
        stored, damaged = stored_rows(shard.campaign_dir, Among(group_of(shard.name), shard.fingerprints))
        for line in damaged:
            logger.warning("%s", line)
        settled = _settle(shard, stored, limits)
        tasks = [
            Task(cell, stored[cell.fingerprint].attempt + 1 if cell.fingerprint in stored else 1)
            for cell in shard.cells
            if cell.fingerprint not in settled
        ]
        progress = Progress(shard.name, len(shard.cells), Counter(settled.values()))
        with pulse(shard.campaign_dir, shard.name, progress) as beating:
            if tasks:
                logger.info("%d cells are stored already, %d to measure", len(settled), len(tasks))
                _run(shard, tasks, limits, progress, beating, workers, address)
            fold(shard.campaign_dir, shard.name, shard.fingerprints)
        progress.close(f"kvfrontier log {shard.campaign_dir.name}")
        logger.info("done: %s", dict(progress.counts))
        return progress.counts


def _settle(shard: Shard, stored: dict[str, Stored], limits: Limits) -> dict[str, str]:
    """Statuses of the cells that need no run: final rows, and what the plan already knows to be impossible."""
    settled = {}
    for cell in shard.cells:
        row = stored.get(cell.fingerprint)
        if row is not None and row.is_final(limits.max_attempts):
            settled[cell.fingerprint] = row.status
        elif cell.status is not None:
            facts = driver_facts(shard.project, cell.cell)
            row = outcome_row(cell, 1, cell.status, reason=cell.reason, phase="plan", provenance=facts)
            write_row(shard.campaign_dir, row)
            settled[cell.fingerprint] = cell.status
    return settled


def _run(
    shard: Shard,
    tasks: list[Task],
    limits: Limits,
    progress: Progress,
    beating: Pulse,
    workers: int | None,
    address: str,
) -> None:
    plugins = [(task, *instantiate(task.planned.cell)) for task in tasks]
    # A modelled time does not depend on what else runs, so only measured cells need the machine for themselves.
    alone = [task for task, engine, _, workload in plugins if workload.exclusive and engine.source == "measured"]
    lonely = {task.planned.fingerprint for task in alone}
    shared = [task for task in tasks if task.planned.fingerprint not in lonely]
    first, engine = shard.cells[0].cell, plugins[0][1]
    placement = place(shard.project, first, engine, workers, address)
    most = max(1, min(placement.workers, len(shared)))  # never more than cells
    python = engine.environment_on(load_devices(shard.project)[first.device])
    placement = replace(placement, workers=most, environment=python)

    def stored(task: Task) -> str:
        return _status_of_row(shard.campaign_dir, task)

    def keep(task: Task, status: str, reason: str, reason_class: str, phase: str) -> str:
        if found := stored(task):
            return found  # by the worker, just before it was ended
        why = {"reason": reason, "reason_class": reason_class, "phase": phase}
        facts = driver_facts(shard.project, task.planned.cell)
        write_row(shard.campaign_dir, outcome_row(task.planned, task.attempt, status, **why, provenance=facts))
        return status

    def done(task: Task, report: Report) -> None:
        level = logging.WARNING if report.status in RETRIED else logging.INFO
        took, why = format_seconds(report.wall_s), f": {report.reason}" if report.reason else ""
        logger.log(level, "%s %s (%s)%s", task.planned.cell_id, report.status, took, why)
        if report.status in RETRIED and report.detail:
            logger.warning("%s", report.detail.rstrip())
        progress.add(report.status)

    progress.show()
    with ray_pool(placement, shard.project, shard.campaign_dir) as pool:
        workers = pool.placement.workers
        schedule = Schedule(pool, workers, limits.timeout_s, keep, done, progress.tick, stored)
        beating.in_flight = schedule.in_flight
        schedule.run(shared, alone, seed=int(shard.name.rpartition("-")[2], 16))


def _status_of_row(campaign_dir: Path, task: Task) -> str:
    """Status of the loose row of this attempt; empty where there is none (that can be read)."""
    try:
        row = read_cell_file(cell_file(campaign_dir, task.planned.fingerprint), ["attempt", "status"]).to_pylist()[0]
    except (FileNotFoundError, Damaged):
        return ""
    return row["status"] if row["attempt"] >= task.attempt else ""
