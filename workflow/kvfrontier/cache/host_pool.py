"""A layer whose tokens lie in host memory; a call attends to what is fetched of them, and to its own tokens.

In the terms of the contract in `layer.py`: what attention reads is `used()` and `valid()`; `keys` and `values` are
the model's own during a prefill in one call, and have no width otherwise. Positions, counts and `aux` lie on the device
and tell of the pool: a token is kept whether it is fetched or not. New tokens reach the pool by `store_new`, after
attention. The heads of a row hold as many tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.link import Link, host_empty


class HostPool(LayerCache):
    """`[batch, kv_heads, slots, key_dim + value_dim]` in host memory: one run of memory a token of a head.

    link: what the layers of a batch share. page: slots that are allocated together.
    """

    def __init__(self, link: Link, page: int = 1):
        super().__init__()
        self.link, self.page = link, page
        self.pool: Tensor | None = None
        self.key_dim = self.width = 0
        self.new: tuple[Tensor, Tensor, Tensor, list[int]] | None = None  # keys, values, counts before, lengths
        self.buffer: Tensor | None = None  # what attention reads, on the device

    def used(self) -> tuple[Tensor, Tensor]:
        """Keys and values that this call attends to."""
        return super().used() if self.borrowed else self._split(self.buffer[:, :, : self.slots])

    def borrow(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """As in LayerCache; `keep` or `settle` writes what is left into the pool."""
        super().borrow(keys, values, positions, lengths)
        self.key_dim, self.width = keys.shape[3], keys.shape[3] + values.shape[3]

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """As in LayerCache; what the call attends to is still to be fetched."""
        self.key_dim, self.width = keys.shape[3], keys.shape[3] + values.shape[3]
        before = self.counts.clone() if self.counts.numel() else torch.zeros(keys.shape[:2], dtype=torch.long)
        super().append(keys[..., :0], values[..., :0], positions, lengths)
        self.new = keys, values, before, list(lengths)

    def fetch_all(self) -> None:
        """Attend to every token: for a call of several new tokens a row."""
        keys, values, before, lengths = self.new
        self.buffer = keys.new_zeros(*keys.shape[:2], self.slots, self.width)
        for rows, start, count in _alike(before, lengths):
            if start:
                self.link.fetch(self.pool[rows, :, :start], self.buffer[rows, :, :start])
            new_keys, new_values = self._split(self.buffer[rows, :, start : start + count])
            new_keys.copy_(keys[rows, :, :count])
            new_values.copy_(values[rows, :, :count])

    def store_new(self) -> None:
        """Write a call's new tokens into the pool."""
        if self.new is not None:
            self._store(*self.new)
            self.new = None

    def let_go(self) -> None:
        """Give back what a call attended to."""
        self.buffer = None

    def settle(self, shrink: bool = False) -> None:
        """As in LayerCache; the device keeps no tokens."""
        keys, values, was_borrowed = self.keys, self.values, self.borrowed
        self.keys, self.values = keys[..., :0], values[..., :0]
        super().settle(shrink)
        if was_borrowed:
            self._store(keys, values, torch.zeros_like(self.counts), self.counts[:, 0].tolist())
        self.let_go()

    def keep(self, slots: Tensor, counts: Tensor) -> None:
        """As in LayerCache."""
        keys, values, pool, was_borrowed = self.keys, self.values, self.pool, self.borrowed
        self.keys, self.values = keys[..., :0], values[..., :0]
        super().keep(slots, counts)
        if was_borrowed:
            chosen = [part.gather(2, slots[..., None].expand(*slots.shape, part.shape[3])) for part in (keys, values)]
            self._store(*chosen, torch.zeros_like(counts), counts[:, 0].tolist())
        else:
            source = slots.cpu()[..., None].expand(*slots.shape, self.width)
            self.pool[:, :, : slots.shape[2]] = pool.gather(2, source)

    def drop(self, slots: Tensor, heads: Tensor | None = None) -> None:
        """As in LayerCache; the token that moves, moves in host memory."""
        last = (self.counts - 1)[..., None, None].expand(-1, -1, 1, self.width)
        goes = slots.cpu()[..., None, None].expand_as(last)
        goes = goes if heads is None else torch.where(heads[..., None, None], goes, last)
        self.pool.scatter_(2, goes, self.pool.gather(2, last))
        super().drop(slots, heads)

    def used_bytes(self) -> int:
        """Bytes of tokens on the device: those of a prefill, until it settles."""
        return super().used_bytes() if self.borrowed else 0

    def host_bytes(self) -> int:
        """Bytes of all tokens in the pool."""
        return 0 if self.pool is None else int(self.counts.sum()) * self.pool[0, 0, 0].nbytes

    def reserved_bytes(self) -> int:
        """Bytes of the tensors that hold tokens, on the device and in host memory."""
        return super().reserved_bytes() + sum(part.nbytes for part in (self.buffer, self.pool) if part is not None)

    def _allocate(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        super()._allocate(keys, values, capacity)
        slots = -(-capacity // self.page) * self.page
        self.pool = host_empty((*keys.shape[:2], slots, self.width), self.keys)

    def _reallocate(self, capacity: int) -> None:
        pool, slots = self.pool, self.slots
        super()._reallocate(capacity)
        if pool is not None:
            self.pool[:, :, :slots] = pool[:, :, :slots]

    def _store(self, keys: Tensor, values: Tensor, starts: Tensor, lengths: Sequence[int]) -> None:
        for rows, start, count in _alike(starts, lengths):
            if count:
                parts = self._split(self.pool[rows, :, start : start + count])
                for new, out in zip((keys, values), parts, strict=True):
                    self.link.store(new[rows, :, :count], out)

    def _split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return tokens[..., : self.key_dim], tokens[..., self.key_dim :]


def _alike(starts: Tensor, lengths: Sequence[int]) -> Iterator[tuple[slice, int, int]]:
    """(rows, first slot, new tokens) of rows that are alike in both; starts: `[batch, kv_heads]`."""
    pairs = list(zip(starts[:, 0].tolist(), lengths, strict=True))
    if len(set(pairs)) == 1:
        yield slice(0, len(pairs)), *pairs[0]
    else:
        yield from ((slice(row, row + 1), *pair) for row, pair in enumerate(pairs))
