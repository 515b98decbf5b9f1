"""The precision of what is summed, ranked or coded: float32, and float64 in a float64 model."""

from __future__ import annotations

import torch
from torch import Tensor


def precise_type(dtype: torch.dtype) -> torch.dtype:
    """float32 for all types but float64."""
    return torch.promote_types(dtype, torch.float32)


def precise(tensor: Tensor) -> Tensor:
    """The tensor in that type."""
    return tensor.to(precise_type(tensor.dtype))
