"""Keep the best tokens of each head."""

from __future__ import annotations

import torch
from torch import Tensor

from kvfrontier.cache.layer import LayerCache


def keep_best(cache: LayerCache, scores: Tensor, kept: Tensor) -> None:
    """Keep each head's `kept` `[batch, kv_heads]` best, in the order of positions; equal scores: the older is kept.

    scores: `[batch, kv_heads, slots]`; unused slots may hold anything.
    """
    positions = cache.used_positions().long()
    unused = positions < 0
    by_age = positions.masked_fill(unused, torch.iinfo(torch.long).max).argsort(-1)
    scores = scores.masked_fill(unused, float("-inf")).gather(-1, by_age)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., : int(kept.max())]
    beyond = torch.arange(best.shape[-1], device=best.device) >= kept.to(best.device)[..., None]
    best = best.masked_fill(beyond, scores.shape[-1]).sort(dim=-1).values  # ages, ascending, the cut ones last
    cache.keep(by_age.gather(-1, best.masked_fill(beyond, 0)), kept)
