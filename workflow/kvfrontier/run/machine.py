"""What of this machine a job may use, as the kernel, a container or a batch system allow it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CORES = "KVFRONTIER_CORES"
"""What `snakemake --cores N` leaves to its jobs on this machine."""
MIB = 2**20


def usable_cores() -> int:
    """Cores this process may run on; less where `--cores`, a quota (`docker --cpus`) or Slurm grants less."""
    cores = len(os.sched_getaffinity(0))
    for folder in _cgroups("cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        quota = quota or _text(folder / "cpu.cfs_quota_us")  # -1: none
        period = period or _text(folder / "cpu.cfs_period_us")
        if quota.strip().isdigit() and period.strip().isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    granted = _slurm("SLURM_CPUS_PER_TASK") or _slurm("SLURM_CPUS_ON_NODE") or cores
    given = os.environ.get(CORES, "")
    return max(1, min(cores, granted, int(given) if given.isdigit() else cores))


def available_bytes() -> int:
    """Memory that could still be taken without swapping, and without passing a limit of a cgroup or of Slurm."""
    available = meminfo()["MemAvailable"]
    for folder in _cgroups("memory"):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")
        if limit.strip().isdigit() and used.strip().isdigit():
            counts = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
            cached = counts.get("total_inactive_file") or counts.get("inactive_file", "0")  # v1 counts below it apart
            available = min(available, int(limit) - int(used) + int(cached))
    granted_mib = _slurm("SLURM_MEM_PER_NODE") or _slurm("SLURM_MEM_PER_CPU") * _slurm("SLURM_CPUS_ON_NODE")
    return max(0, min(available, granted_mib * MIB or available))


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


def _slurm(name: str) -> int:
    """A number that Slurm told this job; 0 outside of a job, and where it told none (no limit)."""
    text = os.environ.get(name, "") if "SLURM_JOB_ID" in os.environ else ""
    return int(text) if text.isdigit() else 0


def _cgroups(controller: str) -> Iterator[Path]:
    """Our cgroups that hold limits of this kind and those above them, of version 2 and of version 1."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, names, inside = line.split(":", 2)
        if not names or controller in names.split(","):
            top = CGROUPS / names  # none in version 2
            # In a container the path may be the host's: then only the top, which is the container's own, exists.
            folder = top / inside.strip("/")
            while folder.is_relative_to(top):
                yield folder
                folder = folder.parent


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
