"""Exact softmax column sums in O(n) extra memory: how much attention each key receives from a block of queries.

S_j = sum over queries i of exp(q_i k_j scale - lse_i), where lse_i is the log-sum-exp of query i's row. A row's
normaliser is known only after its last key, so there are two passes over tiles, or one where the attention kernel
has returned lse. Query i sees the keys `j <= offset + i`. Rows may count unequally (`RowWeights`): the softmax stays
that of all keys, only the sum changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TILE_KEYS = 512
TILE_ROWS = 192  # query rows of one tile, all heads of a group together: the tile takes 384 KiB of the core's cache
CUDA_TILE_KEYS = 1024
CUDA_TILE_ELEMENTS = 2**25  # of one tile over all heads of a row: 128 MiB


@dataclass(frozen=True)
class RowWeights:
    """How much each of a block's m query rows counts in column sums; by default each once.

    decay: row i counts decay^(m - 1 - i), so that sums of consecutive blocks can be carried on exactly.
    since: `[batch, kv_heads, n]`, the first row that counts for each key; None: every row that sees it.
    """

    decay: float = 1.0
    since: Tensor | None = None

    def of(self, rows: slice, heads: slice, slots: slice) -> RowWeights:
        """The weights for some rows of the batch, KV heads and keys."""
        return self if self.since is None else RowWeights(self.decay, self.since[rows, heads, slots])

    def powers(self, rows: int, device: torch.device) -> Tensor:
        """decay^(rows - 1 - i) `[rows]`, float32."""
        exponents = torch.arange(rows - 1, -1, -1, dtype=torch.float64, device=device)
        return torch.pow(self.decay, exponents).float()


EACH_ROW = RowWeights()


def matrix_sums(matrix: Tensor, weights: RowWeights = EACH_ROW) -> Tensor:
    """Column sums `[batch, q_heads, n]` of a softmax matrix `[batch, q_heads, m, n]`."""
    rows = matrix.shape[2]
    if weights.since is not None:
        early = torch.arange(rows, device=matrix.device)[:, None] < weights.since[:, :, None]
        matrix = matrix.masked_fill(early.repeat_interleave(matrix.shape[1] // early.shape[1], 1), 0)
    return matrix.sum(2) if weights.decay == 1.0 else weights.powers(rows, matrix.device).to(matrix.dtype) @ matrix


def column_sums(
    queries: Tensor, keys: Tensor, scale: float, offset: int, lse: Tensor | None = None, weights: RowWeights = EACH_ROW
) -> Tensor:
    """Sums over queries `[batch, q_heads, keys]` (float32) of `queries` `[batch, q_heads, m, head_dim]` against `keys`.

    lse: `[batch, q_heads, m]` of the scaled, causal scores; None: computed here by a first pass over the tiles.
    The group of query heads of one KV head is stacked in the row dimension, so that keys are never expanded.
    """
    batch, q_heads, rows, _ = queries.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    group = q_heads // kv_heads
    stacked = queries.reshape(batch * kv_heads, group, rows, -1)
    flat_keys = keys.flatten(0, 1)
    flat_lse = None if lse is None else lse.reshape(batch * kv_heads, group, rows)
    sums = torch.zeros(batch * kv_heads, group, length, dtype=torch.float32, device=keys.device)
    # On a CPU one head at a time stays in the core's cache; a GPU wants all of a sequence in one batched product.
    step = kv_heads if keys.is_cuda else 1
    for start in range(0, batch * kv_heads, step):
        block = slice(start, start + step)
        tiles = _Tiles(stacked[block], flat_keys[block], scale, offset)
        since = None if weights.since is None else weights.since.flatten(0, 1)[block]
        block_lse = tiles.row_lse() if flat_lse is None else flat_lse[block]
        tiles.add_column_sums(sums[block], block_lse, RowWeights(weights.decay, since))
    return sums.view(batch, q_heads, length)


def row_lse(queries: Tensor, keys: Tensor, scale: float, offset: int) -> Tensor:
    """Log-sum-exp of every query's scaled, causal scores `[batch, q_heads, m]` (float32), where no kernel gives it."""
    batch, q_heads, rows, _ = queries.shape
    stacked = queries.reshape(batch * keys.shape[1], q_heads // keys.shape[1], rows, -1)
    return _Tiles(stacked, keys.flatten(0, 1), scale, offset).row_lse().view(batch, q_heads, rows)


class _Tiles:
    """Score tiles of some KV heads: queries `[heads, group, m, head_dim]` against keys `[heads, n, head_dim]`."""

    def __init__(self, queries: Tensor, keys: Tensor, scale: float, offset: int):
        self.heads, self.group, self.rows, head_dim = queries.shape
        self.length, self.offset, self.device = keys.shape[1], offset, keys.device
        self.tile_keys = min(self.length, CUDA_TILE_KEYS if keys.is_cuda else TILE_KEYS)
        stacked = CUDA_TILE_ELEMENTS // (self.heads * self.tile_keys) if keys.is_cuda else TILE_ROWS
        self.tile_rows = min(self.rows, max(1, stacked // self.group))
        # One more column carries -lse into the product: [q scale, -lse] [k, 1] = q k scale - lse, for free.
        # (On CUDA four more, of which three stay zero in the queries: unaligned operands are slow there.)
        width = head_dim + (4 if keys.is_cuda else 1)
        self.keys = torch.ones(self.heads, self.length, width, device=self.device)
        self.keys[..., :head_dim] = keys
        self.queries = torch.zeros(self.heads, self.group, self.rows, width, device=self.device)
        self.queries[..., :head_dim] = queries
        self.queries[..., :head_dim] *= scale
        # Written again for each tile: fresh memory would cost a page fault every 4 KiB.
        self.buffer = torch.empty(self.heads * self.group * self.tile_rows * self.tile_keys, device=self.device)
        self.future: dict[tuple[int, int, int], Tensor] = {}

    def row_lse(self) -> Tensor:
        """Log-sum-exp of every row `[heads, group, m]`, tile by tile."""
        lse = torch.full(self.queries.shape[:3], -torch.inf, device=self.device)
        for rows, _, tile in self._walk():
            running = lse[:, :, rows]
            torch.logaddexp(running, tile.view(*running.shape, -1).logsumexp(-1), out=running)
        return lse

    def add_column_sums(self, sums: Tensor, lse: Tensor, weights: RowWeights) -> None:
        """Add the softmax weights, summed over rows, to `sums` `[heads, group, n]`; `weights.since`: `[heads, n]`."""
        torch.neg(lse.float(), out=self.queries[..., -1])
        ones = torch.eye(self.group, device=self.device).expand(self.heads, -1, -1)  # [heads, group, group]
        selectors = {}  # row counts -> how much which row counts for which query head, [heads, group, group * rows]
        latest = self._latest(weights.since)
        for rows, keys, tile in self._walk():
            count = rows.stop - rows.start
            if count not in selectors:
                selectors[count] = ones.repeat_interleave(count, 2)
                if weights.decay != 1.0:  # within the tile; the rows after it come in by alpha
                    selectors[count] = selectors[count] * weights.powers(count, self.device).repeat(self.group)
            if latest and latest[keys.start // self.tile_keys] > rows.start:
                row = torch.arange(rows.start, rows.stop, device=self.device).repeat(self.group)
                tile.masked_fill_(row[:, None] < weights.since[:, None, keys], -torch.inf)
            sums[:, :, keys].baddbmm_(selectors[count], tile.exp_(), alpha=weights.decay ** (self.rows - rows.stop))

    def _latest(self, since: Tensor | None) -> list[int]:
        """Of each tile of keys, the first row that counts for all of them."""
        return [] if since is None else torch.stack([part.max() for part in since.split(self.tile_keys, 1)]).tolist()

    def _walk(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield (rows, keys, tile `[heads, group * rows, keys]`); entries in a row's future hold -inf."""
        for start in range(0, self.rows, self.tile_rows):
            rows = slice(start, min(start + self.tile_rows, self.rows))
            queries = self.queries[:, :, rows].flatten(1, 2)
            visible = min(self.length, self.offset + rows.stop)
            for first in range(0, visible, self.tile_keys):
                keys = slice(first, min(first + self.tile_keys, visible))
                shape = (self.heads, queries.shape[1], keys.stop - keys.start)
                tile = self.buffer[: shape[0] * shape[1] * shape[2]].view(shape)
                torch.bmm(queries, self.keys[:, keys].transpose(1, 2), out=tile)
                if keys.stop - 1 > self.offset + rows.start:
                    tile += self._future(self.offset + rows.start - keys.start, rows.stop - rows.start, shape[2])
                yield rows, keys, tile

    def _future(self, ahead: int, rows: int, keys: int) -> Tensor:
        """-inf where key j > `ahead` + row i, else 0: `[group * rows, keys]`. Few patterns recur along the diagonal."""
        if (ahead, rows, keys) not in self.future:
            hidden = torch.arange(keys, device=self.device) > torch.arange(rows, device=self.device)[:, None] + ahead
            bias = torch.zeros(rows, keys, device=self.device).masked_fill_(hidden, -torch.inf)
            self.future[ahead, rows, keys] = bias.repeat(self.group, 1)
        return self.future[ahead, rows, keys]
