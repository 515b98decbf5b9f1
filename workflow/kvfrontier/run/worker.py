"""What lives inside an engine actor: a loaded model, one cell after another, each row stored before it is reported.

A cell's row is a file of its own; the rows of quick cells that were handed out together are one part of the store.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvfrontier.errors import KVFrontierError
from kvfrontier.run.cell_runner import Sessions, run_cell
from kvfrontier.store.parts import write_part
from kvfrontier.store.rows import as_table, write_row
from kvfrontier.units import format_bytes

if TYPE_CHECKING:
    from kvfrontier.plan.planned import PlannedCell
    from kvfrontier.plan.project import Project

MEMORY_GROWTH_BYTES = 2 * 2**30
BUNDLE_S = 0.1
"""After so long a worker begins no further cell of those it was given at once."""
RECYCLED = frozenset({"oom", "error", "timeout"})


class Task(NamedTuple):
    """One cell to run, and which try at it this is."""

    planned: PlannedCell
    attempt: int


class Report(NamedTuple):
    """What the driver learns of a finished cell; the row itself is on disk by then.

    recycle: why this worker should be replaced, or empty. fatal: why the whole shard must stop, or empty.
    detail: the traceback, or empty.
    """

    status: str
    reason: str = ""
    phase: str = ""
    reason_class: str = ""
    wall_s: float = 0.0
    recycle: str = ""
    fatal: str = ""
    detail: str = ""


class EngineWorker:
    """Runs cells of one shard in this process. group: of the parts of the shard's rows."""

    def __init__(self, project: Project, campaign_dir: Path, group: str):
        self._campaign_dir, self._group = campaign_dir, group
        self._sessions = Sessions(project)
        self._baseline: tuple[tuple | None, int] | None = None  # what was loaded, and bytes held after its first cell

    def run_bundle(self, tasks: Sequence[Task], concurrent_cells: int) -> list[Report]:
        """Run cells and store their rows; reports on the first of them, where it had to end or took `BUNDLE_S`."""
        if len(tasks) == 1:
            return [self.run(tasks[0], concurrent_cells)]
        rows, reports, until_s = [], [], time.monotonic() + BUNDLE_S
        for task in tasks:
            rows.append(run_cell(task.planned, self._sessions, task.attempt, concurrent_cells))
            reports.append(self._report(rows[-1]))
            if reports[-1].recycle or time.monotonic() > until_s:
                break
        try:
            write_part(self._campaign_dir, self._group, as_table(*rows))
        except KVFrontierError as error:
            return [Report(rows[0]["status"], fatal=str(error))]
        return reports

    def run(self, task: Task, concurrent_cells: int) -> Report:
        """Run one cell and store its row."""
        row = run_cell(task.planned, self._sessions, task.attempt, concurrent_cells)
        try:
            write_row(self._campaign_dir, row)
        except KVFrontierError as error:
            return Report(row["status"], fatal=str(error))
        return self._report(row)

    def _report(self, row: dict[str, Any]) -> Report:
        recycle = f"after {row['status']}" if row["status"] in RECYCLED else self._leak()
        why = (row[name] or "" for name in ("reason", "reason_phase", "reason_class"))
        detail = row["reason_detail"] or ""
        return Report(row["status"], *why, wall_s=row["wall_s"], recycle=recycle, detail=detail)

    def _leak(self) -> str:
        """Empty, or by how much memory has grown since what is loaded ran its first cell, although everything was let
        go of."""
        loaded = self._sessions.loaded
        if self._baseline is None or self._baseline[0] != loaded:
            self._baseline = loaded, held_bytes()
        baseline_bytes = self._baseline[1]
        if held_bytes() - baseline_bytes < MEMORY_GROWTH_BYTES:
            return ""
        self._sessions.forget()
        give_back()
        growth = held_bytes() - baseline_bytes
        return f"{format_bytes(growth)} more memory than after the first cell" if growth > MEMORY_GROWTH_BYTES else ""


def give_back() -> None:
    """Let go of what nothing refers to: of Python's, of the C library's free memory, of the device's cached blocks."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such call
        ctypes.CDLL(None).malloc_trim(0)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def held_bytes() -> int:
    """Memory this process holds: resident, and what torch has allocated on the current CUDA device."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    torch = sys.modules.get("torch")
    on_device = torch.cuda.memory_allocated() if torch is not None and torch.cuda.is_initialized() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") + on_device
