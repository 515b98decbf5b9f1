"""Vectors as small integers: min-max groups with a 16-bit scale and zero, and several codes packed in a byte.

A group of values x is held as q = round((x - zero) / scale), zero = min(x), scale = (max(x) - min(x)) / (2^bits - 1).
Codes are worked out from the scale and zero as they are stored, so that their rounding costs no code its place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvfrontier.cache.precise import precise, precise_type

HALF_MAX = torch.finfo(torch.float16).max


def as_half(numbers: Tensor) -> Tensor:
    """float16, the largest instead of infinity."""
    return numbers.clamp(-HALF_MAX, HALF_MAX).half()


def divisor(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """A stored scale to divide by; 1 for a group without a range, whose codes mean nothing."""
    scale = scale.to(dtype)
    return scale.masked_fill(scale == 0, 1)


def quantise(groups: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes `[..., n]` (uint8) of groups along the last axis `[..., n]`, their scale and zero `[...]` (float16)."""
    groups = precise(groups)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    levels = 2**bits - 1
    scale, zero = as_half((high - low) / levels), as_half(low)
    codes = (groups - zero.to(groups.dtype)) / divisor(scale, groups.dtype)
    return codes.round_().clamp_(0, levels).to(torch.uint8), scale[..., 0], zero[..., 0]


def dequantise(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse, as near as it gets: `[..., n]` in `dtype`."""
    wide = precise_type(dtype)
    return torch.addcmul(zero.to(wide)[..., None], codes.to(wide), scale.to(wide)[..., None]).to(dtype)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes `[..., n]` in `[..., packed_width]` bytes, the first code in the lowest bits."""
    if bits == 8:
        return codes
    per_byte = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_byte)).unflatten(-1, (-1, per_byte))
    return (codes << _shifts(bits, codes.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes of each row of bytes."""
    if bits == 8:
        return packed
    codes = (packed[..., None] >> _shifts(bits, packed.device)) & (2**bits - 1)
    return codes.flatten(-2)[..., :count]


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
