"""A workload for tests of the running: sleeps, then ends as it is told, and notes each start in $KVFRONTIER_NAPS.

Beside that, in a file with the suffix `.where`, it notes where: a line of JSON a start.

Where a file of that name and `.limit` exists, only so many starts as it says go on; the others wait until it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvfrontier.metrics import TTFT_S, Measurement
from kvfrontier.workloads import workload
from kvfrontier.workloads.base import Workload

if TYPE_CHECKING:
    from kvfrontier.engines.base import Session
    from kvfrontier.strategies.base import Strategy

HOG_BYTES = 4 * 2**30
WHERE = ("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_JOB_PARTITION", "CUDA_VISIBLE_DEVICES")


@workload("nap")
class Nap(Workload):
    """`ending`: ok, error, oom, nan, negative, stuck, hog, die, or once (the worker dies the first time only)."""

    seconds: float = 0.0
    ending: str = "ok"
    batch_size: int = 1
    context_tokens: int = 16
    output_tokens: int = 2

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        notes = Path(os.environ["KVFRONTIER_NAPS"])
        note = f"{self.ending} {self.batch_size} {seed}"
        has_run = notes.exists() and note in notes.read_text().splitlines()
        with notes.open("a") as file:
            file.write(f"{note}\n")
            file.flush()
            end = file.tell()  # of this note: others may have been appended since
        with notes.with_suffix(".where").open("a") as file:
            file.write(json.dumps({"nap": note, **{name: os.environ.get(name) for name in WHERE}}) + "\n")
        _wait_for_leave(notes.with_suffix(".limit"), notes.read_bytes()[:end].count(b"\n"))
        time.sleep(self.seconds)
        yield Measurement(TTFT_S, 1.0 + seed)
        yield from ENDINGS[self.ending](has_run)


def _wait_for_leave(limit: Path, number: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        while number > int(limit.read_text()):
            time.sleep(0.05)


def _raise(error: Exception) -> Iterator[Measurement]:
    raise error
    yield


def _die(is_spared: bool) -> Iterator[Measurement]:
    if not is_spared:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from ()


def _stick() -> Iterator[None]:
    """In native code that keeps the interpreter's lock and does not heed SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.PyDLL(None).sleep(10**6)
    yield


def _eat() -> Iterator[None]:
    """Memory, page by page, until somebody stops it; never more than a test may take."""
    eaten = [bytearray(os.urandom(1 << 12) * (1 << 12)) for _ in range(HOG_BYTES >> 24)]
    raise AssertionError(f"nobody minds {len(eaten)} times 16 MiB")
    yield


ENDINGS = {
    "ok": lambda has_run: iter(()),
    "error": lambda has_run: _raise(ValueError("no such luck")),
    "oom": lambda has_run: _raise(
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes")
    ),
    "nan": lambda has_run: iter([Measurement(TTFT_S, float("nan"))]),
    "negative": lambda has_run: iter([Measurement(TTFT_S, -1.0)]),
    "stuck": lambda has_run: _stick(),
    "hog": lambda has_run: _eat(),
    "die": lambda has_run: _die(is_spared=False),
    "once": _die,
}
