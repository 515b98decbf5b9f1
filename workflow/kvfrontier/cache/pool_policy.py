"""What a full pool loses: one token a head, of its older half, by how it was used."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kvfrontier.cache.fetching import FetchingPool
from kvfrontier.cache.view import LayerView

Policy = Literal["counter", "lru", "fifo"]
_USES = "uses"  # of each slot: how often it was fetched, or the last step that fetched it (in tokens seen)


def note_use(view: LayerView, policy: Policy) -> None:
    """Take note of what a decode step attended to."""
    if policy == "fifo":
        return
    uses = view.cache.auxiliary(_USES)
    slots, counts = view.cache.chosen
    counted = torch.arange(slots.shape[2]) < counts[..., None]
    row, head, place = (index.to(uses.device) for index in counted.nonzero(as_tuple=True))
    slot = slots[row, head, place]
    if policy == "counter":
        uses[row, head, slot] += 1
    else:
        uses[row, head, slot] = uses.new_tensor(view.seen_tokens)[row]


def victims(cache: FetchingPool, policy: Policy, sinks: int) -> Tensor:
    """A slot of each head `[batch, kv_heads]`: of the older half of what is no sink, the least used, the oldest."""
    positions, last = cache.used_positions().long(), torch.iinfo(torch.long).max
    positions = positions.masked_fill(positions < 0, last)
    age = positions.argsort(-1).argsort(-1)  # 0: the oldest
    half = sinks + (cache.counts - sinks) // 2
    young = (age < sinks) | (age >= half.to(age.device)[..., None])
    worth = age.float() if policy == "fifo" else cache.auxiliary(_USES)[:, :, : cache.slots]
    worth = worth.masked_fill(young, torch.inf)
    return positions.masked_fill(worth > worth.amin(-1, keepdim=True), last).argmin(-1)
