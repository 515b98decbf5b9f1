"""A process that vLLM will run in: variables that it and OpenMP read once, when they are imported."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from kvfrontier.plan.project import kvfrontier_cache

VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process instead of three, whose scheduler can be looked at
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else it keeps a core for itself, and every engine takes the first one
    "OMP_WAIT_POLICY": "passive",  # waiting threads that spin made decoding ten times slower on a busy machine
}


def prepare_process(threads: int) -> None:
    """Set them. It is the engine's own process; what a user set of vLLM's log and cache stays."""
    os.environ.update(VARIABLES)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # What it learns of a model's class by a process of its own, a minute's work.
    os.environ.setdefault("VLLM_CACHE_ROOT", str(kvfrontier_cache() / "vllm"))


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's collector of cycles while modules are imported and an engine is made: it would walk, again and
    again, what stays anyway, for a quarter of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_once() -> None:
    """vLLM's own calls of the collector then pass over what was imported. Once while an engine lives: closing it thaws
    everything and collects, and the next one freezes anew."""
    if not gc.get_freeze_count():
        gc.freeze()
