"""The device a worker computes on: that it is the declared one, and its type of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvfrontier.errors import DeviceMismatch

if TYPE_CHECKING:
    from kvfrontier.plan.device import Device


def dtype_for(dtype: str, device: Device) -> str:
    """`auto`: bfloat16 on CUDA, float32 on a CPU, where bfloat16 is slower."""
    return dtype if dtype != "auto" else "bfloat16" if device.kind == "cuda" else "float32"


def verify_device(device: Device) -> None:
    """Raise DeviceMismatch unless this machine has the device that the campaign declares."""
    import torch

    if device.kind == "cuda":
        if not torch.cuda.is_available():
            raise DeviceMismatch(f"device '{device.name}' is declared as CUDA; this machine has no usable CUDA device")
        found = torch.cuda.get_device_name()
    else:
        cpuinfo = Path("/proc/cpuinfo")
        found = cpuinfo.read_text() if device.match and cpuinfo.exists() else device.match
    if device.match.lower() not in found.lower():
        shown = found.split("model name\t: ")[-1].splitlines()[0]
        raise DeviceMismatch(f"device '{device.name}' must be named '{device.match}'; this machine has '{shown}'")
