"""Measure one shard: settle what needs no model, run what is missing, fold the rows, write the ledger."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvfrontier.plan.build import instantiate
from kvfrontier.plan.catalog import load_devices
from kvfrontier.plan.planned import PlannedCell
from kvfrontier.plan.project import Project
from kvfrontier.run.outcome import outcome_row
from kvfrontier.run.progress import Progress
from kvfrontier.run.ray_dispatch import Placement, ray_pool
from kvfrontier.run.schedule import Schedule
from kvfrontier.run.worker import Report, Task
from kvfrontier.store.fold import fold
from kvfrontier.store.ledger import RETRIED, Stored, stored_rows
from kvfrontier.store.lock import held
from kvfrontier.store.rows import cell_file, write_row
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
    lock = shard.campaign_dir / "ledgers" / f".{shard.name}.lock"
    with held(lock, f"measuring {shard.name}", say):
        stored, damaged = stored_rows(shard.campaign_dir)
        for line in damaged:
            logger.warning("%s", line)
        settled = _settle(shard, stored, limits)
        tasks = [
            Task(cell, stored[cell.fingerprint].attempt + 1 if cell.fingerprint in stored else 1)
            for cell in shard.cells
            if cell.fingerprint not in settled
        ]
        progress = Progress(shard.name, len(shard.cells), Counter(settled.values()))
        if tasks:
            logger.info("%d cells are stored already, %d to measure", len(settled), len(tasks))
            _run(shard, tasks, limits, progress, workers, address)
        fold(shard.campaign_dir, shard.name, shard.fingerprints)
        progress.close()
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
            write_row(shard.campaign_dir, outcome_row(cell, 1, cell.status, reason=cell.reason, phase="plan"))
            settled[cell.fingerprint] = cell.status
    return settled


def _run(
    shard: Shard, tasks: list[Task], limits: Limits, progress: Progress, workers: int | None, address: str
) -> None:
    plugins = [(task, *instantiate(task.planned.cell)) for task in tasks]
    # A modelled time does not depend on what else runs, so only measured cells need the machine for themselves.
    alone = [task for task, engine, _, workload in plugins if workload.exclusive and engine.source == "measured"]
    lonely = {task.planned.fingerprint for task in alone}
    shared = [task for task in tasks if task.planned.fingerprint not in lonely]
    placement = _placement(shard, plugins[0][1], len(shared), workers, address)

    def keep(task: Task, status: str, reason: str, reason_class: str, phase: str) -> None:
        if _has_row(shard.campaign_dir, task):
            return  # the worker stored it just before it was ended
        row = outcome_row(task.planned, task.attempt, status, reason=reason, reason_class=reason_class, phase=phase)
        write_row(shard.campaign_dir, row)

    def done(task: Task, report: Report) -> None:
        level = logging.WARNING if report.status in RETRIED else logging.INFO
        took, why = format_seconds(report.wall_s), f": {report.reason}" if report.reason else ""
        logger.log(level, "%s %s (%s)%s", task.planned.cell_id, report.status, took, why)
        progress.add(report.status)

    with ray_pool(placement, shard.project, shard.campaign_dir) as pool:
        schedule = Schedule(pool, placement.workers, limits.timeout_s, keep, done)
        schedule.run(shared, alone, seed=int(shard.name.rpartition("-")[2], 16))


def _has_row(campaign_dir: Path, task: Task) -> bool:
    if not cell_file(campaign_dir, task.planned.fingerprint).exists():
        return False
    stored, _ = stored_rows(campaign_dir)
    return stored[task.planned.fingerprint].attempt >= task.attempt


def _placement(shard: Shard, engine: object, shared: int, workers: int | None, address: str) -> Placement:
    """One worker a GPU, or as many as the cores hold with the engine's threads; never more than cells."""
    cores = len(os.sched_getaffinity(0))
    on_gpu = load_devices(shard.project)[shard.cells[0].cell.device].kind == "cuda" and engine.source == "measured"
    threads = min(getattr(engine, "threads", None) or 1, cores)
    places = _gpus() if on_gpu else cores // threads
    return Placement(
        workers=max(1, min(workers or places, shared)), threads=threads, gpus=1.0 if on_gpu else 0.0, address=address
    )


def _gpus() -> int:
    """GPUs this job was given. Ray cannot see them without NVML, Slurm and CUDA say them in the environment."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
