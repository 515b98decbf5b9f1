"""Layers in which the model itself attends to a sliding window: they hold that window, whatever the strategy.

A query at position p sees the keys at p - window + 1 ... p, so after a call the last window - 1 tokens are held.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfrontier.cache.best import keep_best
from kvfrontier.cache.layer import LayerCache

ROWS = 256  # queries of one tile: it sees at most window + ROWS keys


class ModelWindow:
    """What decides over a windowed layer, in a strategy's place, with formulas as a strategy has them."""

    def __init__(self, window: int):
        self.window = window

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """What the next query may see."""
        return min(prompt_tokens + generated_tokens, self.window - 1)

    def kept_by_layer(self, layers: int, prompt_tokens: int, generated_tokens: int = 0) -> list[int]:
        """The same in each."""
        return [self.kept_tokens(prompt_tokens, generated_tokens)] * layers

    def peak_tokens(self, prompt_tokens: int, generated_tokens: int) -> int:
        """A step's own token is stored before the oldest goes."""
        if not generated_tokens:
            return self.kept_tokens(prompt_tokens)
        return self.kept_tokens(prompt_tokens, generated_tokens - 1) + 1

    def trim(self, cache: LayerCache) -> None:
        """Let go of what no later query sees."""
        kept = cache.counts.clamp(max=self.window - 1)
        excess = cache.counts - kept
        most = int(excess.max())
        positions = cache.used_positions()
        if most == 1:
            oldest = positions.masked_fill(positions < 0, torch.iinfo(positions.dtype).max).argmin(-1)
            cache.drop(oldest, None if bool(excess.all()) else excess == 1)
        elif most > 1:
            keep_best(cache, positions.float(), kept)


def attend_window(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    asked: Tensor,
    stored: Tensor,
    window: int,
    sinks: Tensor | None = None,
    earliest: Tensor | None = None,
    in_order: bool = False,
    always: Tensor | None = None,
) -> Tensor:
    """Attention of several queries a row to their windows, `[batch, q_heads, m, value_dim]`.

    asked: positions of the queries `[batch, m]`; stored: those of the keys `[batch, kv_heads, n]`, negative where none
    is; sinks: `[q_heads]` logits beside the keys'; earliest: `[batch, 1]`, the first position that may be seen.
    always: `[batch, kv_heads, n]`, True for keys that are seen from beyond the window, too.
    in_order: slot i of every row holds position i, so that a tile needs few of them.
    """
    batch, q_heads, count, head_dim = queries.shape
    kv_heads, group = keys.shape[1], queries.shape[1] // keys.shape[1]
    out = queries.new_empty(batch, q_heads, count, values.shape[3])
    for start in range(0, count, ROWS):
        rows = slice(start, min(start + ROWS, count))
        first = max(0, start - window + 1) if always is None else 0
        slots = slice(first, rows.stop) if in_order else slice(None)
        at, ask = stored[:, :, None, slots], asked[:, None, rows, None]
        visible = at > ask - window  # [batch, kv_heads, rows, slots]
        if always is not None:
            visible = visible | always[:, :, None, slots]
        visible = visible & (at >= 0) & (at <= ask)
        if earliest is not None:
            visible &= at >= earliest[:, :, None, None]
        visible[..., :1] |= ~visible.any(-1, keepdim=True)  # padding sees something, so that it stays finite
        stacked = queries[:, :, rows].reshape(batch, kv_heads, -1, head_dim)
        mask = visible.repeat(1, 1, group, 1)  # [batch, kv_heads, group * rows, slots]
        part = _attend_masked(stacked, keys[:, :, slots], values[:, :, slots], scale, mask, sinks)
        out[:, :, rows] = part.reshape(batch, q_heads, rows.stop - rows.start, -1)
    return out


def _attend_masked(
    stacked: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor, sinks: Tensor | None
) -> Tensor:
    """stacked: `[batch, kv_heads, group * rows, head_dim]`. A sink is one more key, of no value, with a fixed logit."""
    if sinks is None:
        return F.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scale)
    batch, kv_heads, rows, _ = stacked.shape
    bias = torch.zeros_like(mask, dtype=stacked.dtype).masked_fill_(~mask, -torch.inf)
    logits = sinks.to(bias.dtype).view(1, kv_heads, -1, 1).expand(batch, -1, -1, rows * kv_heads // len(sinks))
    bias = torch.cat((bias, logits.reshape(batch, kv_heads, rows, 1)), -1)
    keys, values = (torch.cat((part, part.new_zeros(*part.shape[:2], 1, part.shape[3])), 2) for part in (keys, values))
    return F.scaled_dot_product_attention(stacked, keys, values, attn_mask=bias, scale=scale)
