"""Which tokens a cache still holds, told by the keys themselves: rotated by their positions, no two are the same."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 4096  # slots at a time: a code takes 8 bytes an element while it is made
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def codes(keys: Tensor) -> Tensor:
    """64 bits for each key `[rows, heads, slots, head_dim]`: equal for equal keys, and hardly ever for others."""
    draw = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (keys.shape[-1],), generator=draw).to(keys.device) * 2 + 1
    blocks = keys.view(_BITS[keys.itemsize]).split(BLOCK, dim=2)
    return torch.cat([(block.long() * factors).sum(-1) for block in blocks], dim=2)


def find(wanted: Tensor, among: Tensor) -> Tensor | None:
    """Where each of `wanted` `[rows, heads, kept]` is in `among` `[rows, heads, slots]`; None where that is unclear."""
    ordered, places = among.sort(-1)
    found = torch.searchsorted(ordered, wanted.contiguous()).clamp_max(among.shape[-1] - 1)
    is_unique = bool((ordered[..., 1:] != ordered[..., :-1]).all())
    if not is_unique or not torch.equal(ordered.gather(-1, found), wanted):
        return None
    return places.gather(-1, found)
