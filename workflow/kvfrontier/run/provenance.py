"""Where a number was taken: a fixed list of facts, each asked for by name; never a copy of the environment."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvfrontier import __version__
from kvfrontier.errors import KVFrontierError
from kvfrontier.plan.build import instantiate
from kvfrontier.plan.catalog import load_data, load_devices, load_models
from kvfrontier.plan.device import Device
from kvfrontier.plan.environment import CORE, NOT_INSTALLED, qualified, running_in
from kvfrontier.plan.fingerprint import package_version
from kvfrontier.plan.revision import current_revision

if TYPE_CHECKING:
    from kvfrontier.plan.cell import Cell
    from kvfrontier.plan.project import Project
    from kvfrontier.strategies.base import Strategy


@cache
def machine_facts(root: Path) -> dict[str, str]:
    """What does not change while this process lives: code, interpreter, host, processor, device, driver."""
    facts = {
        "kvfrontier": __version__,
        "python": platform.python_version(),
        "environment": running_in(),
        "host": socket.gethostname(),
        "os": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "git_revision": current_revision(root),
        "driver": _driver(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID", ""),
        "node": os.environ.get("SLURMD_NODENAME", ""),
    }
    return {name: value for name, value in facts.items() if value}


def driver_facts(project: Project, cell: Cell) -> dict[str, str]:
    """What stands in the row of a cell that no worker could write: of the driver's machine, and the cell's entries."""
    engine, _, workload = instantiate(cell)
    try:
        environment = engine.environment_on(load_devices(project)[cell.device])
    except (KVFrontierError, KeyError, OSError):  # a device that the catalog does not have: the cell fails of it
        environment = engine.environment
    packages = package_facts((*engine.packages, *workload.packages), environment)
    return {**machine_facts(project.root), **entry_facts(project, cell, workload.data()), **packages}


def entry_facts(project: Project, cell: Cell, data: Iterable[str] = ()) -> dict[str, str]:
    """The catalogs' entries that a cell runs with, as compact JSON: what `kvfrontier rerun` needs instead of them.

    A catalog that cannot be read leaves its entry out: the cell itself fails of it, or has no use for it.
    """
    return {
        **_entry("model_entry", lambda: load_models(project).entry(cell.model)),
        **_entry("device_entry", lambda: declared_device(load_devices(project)[cell.device])),
        **_entry("data_entries", lambda: {name: load_data(project).entry(name) for name in sorted(set(data))}),
    }


def memory_facts(project: Project, cell: Cell, strategy: Strategy) -> dict[str, str]:
    """What a strategy's other memories are beside the cell's device: on a CPU both are RAM, and a link may be emulated.

    Nothing for a device that the catalog does not have: the cell fails of it.
    """
    try:
        device = load_devices(project)[cell.device]
    except (KVFrontierError, KeyError, OSError):
        return {}
    return strategy.memories(device.kind)


def declared_device(device: Device) -> dict[str, Any]:
    """What config/devices.yaml says of a device, without what is default there, and without where Slurm has it."""
    values = {item.name: getattr(device, item.name) for item in fields(device) if item.name != "slurm"}
    return {item.name: values[item.name] for item in fields(device)[1:-1] if values[item.name] != item.default}


def _entry(name: str, read: Callable[[], dict[str, Any]]) -> dict[str, str]:
    try:
        found = read()
    except (KVFrontierError, KeyError, OSError):
        return {}
    return {name: json.dumps(found, sort_keys=True, separators=(",", ":"))} if found else {}


def package_facts(names: Iterable[str], environment: str = CORE) -> dict[str, str]:
    """Versions of the named distributions of this process, or of an environment; one that is missing is left out."""
    found = {name: package_version(qualified(name, environment)) for name in sorted(set(names))}
    return {name: value for name, value in found.items() if value != NOT_INSTALLED}


def moment_facts(concurrent_cells: int) -> dict[str, str]:
    """What differs from cell to cell: how busy the machine is, and what the libraries use."""
    facts = {"load_average": f"{os.getloadavg()[0]:.2f}", "concurrent_cells": str(concurrent_cells)}
    torch = sys.modules.get("torch")  # never import it for this: the simulator runs without
    if torch is not None:
        facts["threads"] = str(torch.get_num_threads())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            facts["device_name"] = torch.cuda.get_device_name()
    return facts


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""
