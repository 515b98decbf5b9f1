"""What this machine can run: looked up, never guessed, and nothing heavy is imported that is not installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from kvfrontier.plan.catalog import load_devices
from kvfrontier.plan.environment import environments
from kvfrontier.plan.project import Project, kvfrontier_cache
from kvfrontier.run.machine import available_bytes, meminfo, usable_cores
from kvfrontier.units import format_bytes

NEEDED = ("torch", "transformers", "ray", "snakemake", "duckdb", "pyarrow", "altair", "vl-convert-python")
LITTLE_DISK_BYTES = 3 * 10**9  # the default campaign: a 93 MB and an 86 MB wheel, 540 MB of weights, and room


class Finding(NamedTuple):
    """One line of the doctor's: `problem` needs something from the user before a campaign can run."""

    topic: str
    state: Literal["ok", "note", "problem"]
    text: str


def examine(project: Project) -> Iterator[Finding]:
    """All findings, cheap ones first."""
    cores = usable_cores()
    yield Finding("cores", "ok", f"{cores} usable, load average {os.getloadavg()[0]:.1f}")
    if os.getloadavg()[0] > cores / 2:
        yield Finding("load", "note", "the machine is busy: timed cells will be noisy")
    yield Finding(
        "memory", "ok", f"{format_bytes(available_bytes())} of {format_bytes(meminfo()['MemTotal'])} available"
    )
    yield from _packages()
    yield from _environments()
    yield from _cuda()
    yield from _folder("results", project.results)
    yield from _folder("cache", kvfrontier_cache())
    names = ", ".join(f"{device.name} ({device.kind})" for device in load_devices(project).values())
    yield Finding("devices", "ok", f"declared in config/devices.yaml: {names}")
    yield Finding("network", "note", "not probed; `kvfrontier fetch` says when a download cannot be reached")


def _packages() -> Iterator[Finding]:
    for name in NEEDED:
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "problem", "not installed; scripts/run makes the environment from envs/core.txt")


def _environments() -> Iterator[Finding]:
    for environment in environments():
        topic = f"environment {environment.name}"
        is_made = environment.is_made
        missing = f"not made, so cells of its engine are unsupported: {environment.recipe}"
        yield Finding(topic, "ok" if is_made else "note", str(environment.folder) if is_made else missing)


def _cuda() -> Iterator[Finding]:
    if find_spec("torch") is None:
        return
    import torch

    if not torch.cuda.is_available():
        yield Finding("cuda", "note", "no CUDA device for torch: campaigns that declare one give error rows here")
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        yield Finding("cuda", "ok", f"{device.name}, {format_bytes(device.total_memory)}")


def _folder(topic: str, folder: Path) -> Iterator[Finding]:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK):
        yield Finding(topic, "problem", f"{folder} cannot be written")
        return
    free_bytes = shutil.disk_usage(there).free
    state = "note" if free_bytes < LITTLE_DISK_BYTES else "ok"
    yield Finding(topic, state, f"{folder}, {format_bytes(free_bytes)} free on its disk")
