"""What of this machine a job may use, as the kernel and a container or a batch system allow it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores this process may run on; less where a quota (cgroup v2, `docker --cpus`) grants less."""
    cores = len(os.sched_getaffinity(0))
    for folder in _cgroups():
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_bytes() -> int:
    """Memory that could still be taken without swapping, and without passing the limit of a cgroup above us."""
    available = meminfo()["MemAvailable"]
    for folder in _cgroups():
        limit, used = _text(folder / "memory.max"), _text(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            cached = dict(line.split() for line in _text(folder / "memory.stat").splitlines()).get("inactive_file", "0")
            available = min(available, int(limit) - int(used) + int(cached))
    return max(0, available)


def meminfo() -> dict[str, int]:
    """/proc/meminfo, in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 2}


class OutOfMemoryKills:
    """Tells whether the kernel has killed a process for memory since last asked, which leaves no other trace."""

    def __init__(self) -> None:
        self._seen = self._count()

    def has_killed(self) -> bool:
        """True once for every rise of the count."""
        before, self._seen = self._seen, self._count()
        return self._seen > before

    @staticmethod
    def _count() -> int:
        words = (line.split() for line in _text(Path("/proc/vmstat")).splitlines())
        return next((int(count) for name, count in words if name == "oom_kill"), 0)


def _cgroups() -> Iterator[Path]:
    """Our cgroup (v2) and those above it; none where there is no such hierarchy."""
    line = next((line for line in _text(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "")
    folder = CGROUPS / line[3:].strip("/")
    while line and folder.is_relative_to(CGROUPS):
        yield folder
        folder = folder.parent


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
