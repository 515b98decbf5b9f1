"""Peak memory of a phase: the process (Linux), the device's allocator, the whole device."""

from __future__ import annotations

import re
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
        status = _PROCESS / "status"
        if status.exists():
            peak_kib = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            found.append(("process_peak_bytes", phase, float(peak_kib.group(1)) * 1024))
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            found.append(("allocator_peak_bytes", phase, float(torch.cuda.max_memory_allocated(self.device))))
            found.append(("device_used_bytes", phase, float(total - free)))
        return found
