"""Where a number was taken: a fixed list of facts, each asked for by name; never a copy of the environment."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvfrontier import __version__

GIT_TIMEOUT_S = 5


@cache
def machine_facts(root: Path) -> dict[str, str]:
    """What does not change while this process lives: code, interpreter, host, processor, device, driver."""
    facts = {
        "kvfrontier": __version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "os": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "git_revision": _git_revision(root),
        "driver": _driver(),
    }
    return {name: value for name, value in facts.items() if value}


def package_facts(names: Iterable[str]) -> dict[str, str]:
    """Versions of the named distributions; one that is not installed is left out."""
    found = {name: _package_version(name) for name in sorted(set(names))}
    return {name: value for name, value in found.items() if value}


@cache
def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


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


def _git_revision(root: Path) -> str:
    if not (root / ".git").exists():
        return ""
    try:
        revision = _git(root, "rev-parse", "HEAD")
        is_changed = bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{revision} with local changes" if is_changed else revision


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S).stdout.strip()
