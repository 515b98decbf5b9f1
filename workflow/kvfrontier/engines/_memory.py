"""Memory of this process and its device: peaks of a phase, and a limit. The process's own on Linux alone."""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"  # what clears VmHWM, see proc(5)


class PeakMemory:
    """Peaks since the last `reset`, of a process that computes on `device`."""

    def __init__(self, device: torch.device):
        self.device = device

    def reset(self) -> None:
        """Start a phase."""
        clear = _PROCESS / "clear_refs"
        if clear.exists():
            clear.write_text(_RESET_PEAK)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def readings(self, phase: str) -> list[tuple[str, str, float]]:
        """`(metric, phase, bytes)` of what can be read on this system."""
        found = []
        if (_PROCESS / "status").exists():
            found.append(("process_peak_bytes", phase, float(_status_bytes("VmHWM"))))
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            found.append(("allocator_peak_bytes", phase, float(torch.cuda.max_memory_allocated(self.device))))
            found.append(("device_used_bytes", phase, float(total - free)))
        return found


class MemoryLimit:
    """At most `limit_gb` (10^9 bytes) for this process: beyond it an allocation raises, and the process lives on.

    On a CPU: resident memory, weights and libraries included. The kernel counts writable mappings, touched or not
    (RLIMIT_DATA), so `renew`, called now and again, allows what is mapped already and the rest of the limit on top.
    On CUDA: this process's share of the device, by its caching allocator.
    """

    def __init__(self, device: torch.device, limit_gb: float | None):
        self.device = device
        self.limit_bytes = None if limit_gb is None else int(limit_gb * 1e9)
        self._before = resource.getrlimit(resource.RLIMIT_DATA)

    def renew(self) -> None:
        """Enforce the limit from here on, given what is in use now."""
        if self.limit_bytes is None:
            return
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_bytes / total), self.device)
            return
        mapped = _status_bytes("VmData") + max(0, self.limit_bytes - _status_bytes("VmRSS"))
        most = self._before[1]
        resource.setrlimit(
            resource.RLIMIT_DATA, (mapped if most == resource.RLIM_INFINITY else min(mapped, most), most)
        )

    def lift(self) -> None:
        """As before."""
        if self.limit_bytes is None:
            return
        if self.device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)
        else:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)


def give_back_heap() -> None:
    """Give the system what this process's allocator holds free, where that can be told to (glibc).

    It holds on to tens of MB that were freed: resident memory, and in pieces that a large tensor may not fit in.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _status_bytes(field: str) -> int:
    """A size in this process's status, see proc(5)."""
    return int(re.search(rf"{field}:\s+(\d+) kB", (_PROCESS / "status").read_text()).group(1)) * 1024
