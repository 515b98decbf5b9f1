"""How many workers a shard gets on this machine, and what each of them takes."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvfrontier.plan.catalog import load_devices, load_models
from kvfrontier.plan.environment import CORE
from kvfrontier.run.machine import available_bytes, usable_cores

if TYPE_CHECKING:
    from kvfrontier.engines.base import Engine
    from kvfrontier.plan.cell import Cell
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.plan.project import Project

WEIGHT_BYTES = 5
"""Of a parameter on a CPU, on the safe side: float32 is 4."""
AS_MANY_AS_FIT = 10_000
"""Workers on a running cluster, of which only that cluster knows how large it is."""
WORKER_BYTES = 10**9
"""Libraries, and activations and a cache of moderate size."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placement:
    """Where workers run and what each takes. `address`: a running Ray cluster, or empty for one of our own.

    environment: whose Python runs them.
    """

    workers: int = 1
    threads: int = 1
    gpus: float = 0.0
    address: str = ""
    environment: str = CORE


def place(project: Project, cell: Cell, engine: Engine, workers: int | None = None, address: str = "") -> Placement:
    """One worker a GPU, or as many as cores (with the engine's threads) and memory hold. `workers`: so many instead."""
    cores = usable_cores()
    threads = getattr(engine, "threads", None) or 1
    if address:
        gpus = gpus_per_worker(engine) if _is_cuda(project, cell, engine) else 0
        return Placement(workers or AS_MANY_AS_FIT, threads, float(gpus), address)
    threads = min(threads, cores)
    if _is_cuda(project, cell, engine):
        each, found = gpus_per_worker(engine), visible_gpus()
        # Without one here the worker starts all the same and says that the device is not what the campaign declares.
        return Placement(workers or found // each or 1, threads, float(each) if found else 0.0)
    places = cores // threads
    if workers is None and engine.source == "measured":
        places = min(places, _that_fit(load_models(project)[cell.model].spec, places))
    return Placement(max(1, workers or places), threads)


def _is_cuda(project: Project, cell: Cell, engine: Engine) -> bool:
    return load_devices(project)[cell.device].kind == "cuda" and engine.source == "measured"


def gpus_per_worker(engine: Engine) -> int:
    """GPUs over which one worker spreads a model: an engine that can has a parameter `gpus`."""
    return getattr(engine, "gpus", 1)


def visible_gpus() -> int:
    """GPUs this job was given. Ray cannot see them without NVML, Slurm and CUDA say them in the environment."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def _that_fit(spec: ModelSpec, places: int) -> int:
    """Workers whose models fit into memory together; all where the model's size is not known."""
    if not spec.parameters:
        return places
    fitting = max(1, available_bytes() // (WEIGHT_BYTES * spec.parameters + WORKER_BYTES))
    if fitting < places:
        logger.info("%d workers instead of %d: more would not fit into memory", fitting, places)
    return fitting
