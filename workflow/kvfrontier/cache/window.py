"""The last queries of a reading and what they attend to: scores that need w rows of attention, not all n.

A reading is a prefill or an extension. It may come in chunks, and rows of a batch end in different ones, so the last
queries are noted chunk by chunk and dropped when the strategy has compressed: until then they count as auxiliary bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfrontier.cache.attention import weigh
from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.view import LayerView

_QUERIES, _COUNT = "window_queries", "window_count"  # [batch, q_heads, window, head_dim], newest last; [batch]


def note_queries(view: LayerView, window: int) -> None:
    """Remember each row's last `window` queries of this reading, this call's included."""
    extras, queries = view.cache.extras, view.queries
    new = torch.tensor(view.new_tokens)
    place = new[:, None] - window + torch.arange(window)  # [batch, window] in this call's queries; < 0: an older one
    noted = _at(queries, place.clamp(min=0))
    count = extras.get(_COUNT, torch.zeros_like(new))
    if _QUERIES in extras and int(place.min()) < 0:
        older = _at(extras[_QUERIES], (place + window).clamp(max=window - 1))
        noted = torch.where((place < 0).to(noted.device)[:, None, :, None], older, noted)
    extras[_QUERIES], extras[_COUNT] = noted, (count + new).clamp(max=window)


def drop_queries(cache: LayerCache) -> None:
    """Forget the queries of a reading that has ended."""
    for name in (_QUERIES, _COUNT):
        cache.extras.pop(name, None)


def window_weights(view: LayerView, rows: Sequence[int]) -> Tensor:
    """Mean softmax weight that each slot gets from the last `rows[b]` noted queries of row b, or as many as there are.

    `[batch, q_heads, slots]` float32, 0 in unused slots. A query sees what is not younger than itself. Extra memory:
    one tile of rows x slots for a KV head's group of queries (on a GPU: for all of a row's heads).
    """
    cache = view.cache
    noted, counts = cache.extras[_QUERIES], cache.extras[_COUNT].tolist()
    batch, q_heads, window, _ = noted.shape
    keys, positions = cache.used()[0], cache.used_positions()
    kv_heads, group = keys.shape[1], q_heads // keys.shape[1]
    weights = torch.zeros(batch, q_heads, cache.slots, dtype=torch.float32, device=keys.device)
    step = kv_heads if keys.is_cuda else 1
    for row in range(batch):
        taken = min(rows[row], counts[row])
        last = view.seen_tokens[row] - 1
        asked = torch.arange(last - taken + 1, last + 1, device=keys.device)[:, None]  # positions of the queries
        for first in range(0, kv_heads, step):
            heads = slice(first, first + step)
            slots = int(cache.counts[row, heads].max())
            queries = noted[row, first * group : (first + step) * group, window - taken :].float()
            stacked = queries.reshape(step, group * taken, -1)
            scores = (stacked @ keys[row, heads, :slots].float().transpose(1, 2)).mul_(view.scale)
            scores = scores.view(step, group, taken, slots)
            at = positions[row, heads, None, :slots]  # [heads, 1, slots]
            scores.masked_fill_(((at < 0) | (at > asked))[:, None], -torch.inf)
            q_heads = slice(first * group, (first + step) * group)
            sinks = None if view.sinks is None else view.sinks[q_heads].view(step, group, 1, 1)
            weights[row, q_heads, :slots] = weigh(scores, sinks).mean(2).flatten(0, 1)
    return weights


def pool_by_age(
    weights: Tensor, positions: Tensor, pooled: Tensor, kernel: int, pooling: Literal["max", "avg"]
) -> Tensor:
    """Pool `[batch, kv_heads, group, slots]` over neighbours in the order of positions, as far as kept.

    positions, pooled: `[batch, kv_heads, slots]`; only slots where `pooled` is true give weight to their neighbours,
    others count as 0 (`avg` divides by the whole kernel at the ends, too).
    """
    if kernel == 1:
        return weights
    order = positions.long().masked_fill(positions < 0, torch.iinfo(torch.long).max).argsort(-1)
    order = order[:, :, None].expand_as(weights)
    ordered = weights.masked_fill(~pooled[:, :, None], 0.0).gather(-1, order).flatten(0, 1)
    pool = F.max_pool1d if pooling == "max" else F.avg_pool1d
    smooth = pool(ordered, kernel, stride=1, padding=kernel // 2).view(weights.shape)
    return torch.empty_like(weights).scatter_(-1, order, smooth)


def _at(queries: Tensor, place: Tensor) -> Tensor:
    """Queries `[batch, q_heads, n, head_dim]` at `[batch, m]` of the third axis."""
    index = place.to(queries.device)[:, None, :, None]
    return queries.gather(2, index.expand(-1, queries.shape[1], -1, queries.shape[3]))
