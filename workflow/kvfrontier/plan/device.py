"""A declared device: planning happens where there may be none, so the worker verifies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SlurmPlace:
    """Where Slurm has nodes with a device. None: as the profile says for all jobs."""

    partition: str | None = None
    constraint: str | None = None
    gpu_model: str | None = None


@dataclass(frozen=True)
class Device:
    """One entry of `config/devices.yaml`. Rates are for the cost model; None: unknown."""

    name: str
    kind: Literal["cpu", "cuda"]
    match: str = ""  # text the real device's name must contain
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    flops_per_s: float | None = None
    link_bytes_per_s: float | None = None  # device to host
    step_overhead_s: float = 0.0
    slurm: SlurmPlace = SlurmPlace()  # where to run it says nothing of what it is
