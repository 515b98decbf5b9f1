"""Exact softmax column sums in O(n) extra memory: how much attention each key receives from a block of queries.

S_j = sum over queries i of exp(q_i k_j scale - lse_i), where lse_i is the log-sum-exp of query i's row. A row's
normaliser is known only after its last key, so there are two passes over tiles, or one where the attention kernel
has returned lse. Query i sees the keys `j <= offset + i`.
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE_KEYS = 256
TILE_ROWS = 768  # query rows of one tile, all heads of a group together: tile and operands stay in a 2 MiB cache
CUDA_TILE = 2048


def column_sums(queries: Tensor, keys: Tensor, scale: float, offset: int, lse: Tensor | None = None) -> Tensor:
    """Sums over queries `[batch, q_heads, keys]` (float32) of `queries` `[batch, q_heads, m, head_dim]` against `keys`.

    lse: `[batch, q_heads, m]` of the scaled, causal scores; None: computed here by a first pass over the tiles.
    The group of query heads of one KV head is stacked in the row dimension, so that keys are never expanded.
    """
    batch, q_heads, rows, _ = queries.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    group = q_heads // kv_heads
    # On a CPU one head at a time stays in cache; a GPU wants all of them in one batched product.
    blocks = [slice(0, batch * kv_heads)] if keys.is_cuda else [slice(i, i + 1) for i in range(batch * kv_heads)]
    tile_rows = CUDA_TILE if keys.is_cuda else max(1, TILE_ROWS // group)
    tile_keys = CUDA_TILE if keys.is_cuda else TILE_KEYS
    stacked = queries.reshape(batch * kv_heads, group, rows, -1)
    flat_keys = keys.reshape(batch * kv_heads, length, -1) if keys.is_cuda else keys.flatten(0, 1)
    flat_lse = None if lse is None else lse.reshape(batch * kv_heads, group, rows)
    sums = torch.zeros(batch * kv_heads, group, length, dtype=torch.float32, device=keys.device)
    for block in blocks:
        tiles = _Tiles(stacked[block], flat_keys[block], scale, offset, tile_rows, tile_keys)
        tiles.add_column_sums(sums[block], tiles.row_lse() if flat_lse is None else flat_lse[block])
    return sums.view(batch, q_heads, length)


class _Tiles:
    """Score tiles of some KV heads: queries `[heads, group, m, head_dim]` against keys `[heads, n, head_dim]`."""

    def __init__(self, queries: Tensor, keys: Tensor, scale: float, offset: int, tile_rows: int, tile_keys: int):
        heads, self.group, self.rows, head_dim = queries.shape
        self.length, self.offset = keys.shape[1], offset
        self.tile_rows, self.tile_keys = tile_rows, tile_keys
        # One more column carries -lse into the product: [q scale, -lse] [k, 1] = q k scale - lse, for free.
        self.keys = torch.ones(heads, self.length, head_dim + 1, dtype=torch.float32, device=keys.device)
        self.keys[..., :head_dim] = keys
        self.queries = torch.zeros(heads, self.group, self.rows, head_dim + 1, dtype=torch.float32, device=keys.device)
        torch.mul(queries, scale, out=self.queries[..., :head_dim]) if queries.dtype == torch.float32 else (
            self.queries[..., :head_dim].copy_(queries).mul_(scale)
        )

    def row_lse(self) -> Tensor:
        """Log-sum-exp of every row `[heads, group, m]`, tile by tile."""
        lse = torch.full(self.queries.shape[:3], -torch.inf, device=self.queries.device)
        for rows, _, tile in self._walk():
            running = lse[:, :, rows]
            torch.logaddexp(running, tile.view(*running.shape, -1).logsumexp(-1), out=running)
        return lse

    def add_column_sums(self, sums: Tensor, lse: Tensor) -> None:
        """Add the softmax weights, summed over rows, to `sums` `[heads, group, n]`."""
        torch.neg(lse, out=self.queries[..., -1])
        heads = sums.shape[0]
        for rows, keys, tile in self._walk():
            weights = tile.exp_().view(heads, self.group, rows.stop - rows.start, -1)
            sums[:, :, keys] += weights.sum(2)

    def _walk(self):
        """Yield (row slice, key slice, tile `[heads, group * rows, keys]`); invisible entries hold -inf."""
        for start in range(0, self.rows, self.tile_rows):
            rows = slice(start, min(start + self.tile_rows, self.rows))
            queries = self.queries[:, :, rows].flatten(1, 2)
            visible = min(self.length, self.offset + rows.stop)
            for first in range(0, visible, self.tile_keys):
                keys = slice(first, min(first + self.tile_keys, visible))
                tile = queries @ self.keys[:, keys].transpose(1, 2)
                if keys.stop - 1 > self.offset + rows.start:
                    self._hide_future(tile, rows, keys)
                yield rows, keys, tile

    def _hide_future(self, tile: Tensor, rows: slice, keys: slice) -> None:
        row = torch.arange(rows.start, rows.stop, device=tile.device)[:, None] + self.offset
        future = torch.arange(keys.start, keys.stop, device=tile.device)[None] > row
        tile.view(tile.shape[0], self.group, *future.shape).masked_fill_(future, -torch.inf)
