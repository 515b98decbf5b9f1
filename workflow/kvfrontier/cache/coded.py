"""Layers that hold their tokens in codes between calls.

While a call runs, `keys` and `values` are read back in full precision beside the new tokens, which attention sees as
the model made them; `settle` codes the new tokens and lets the full-precision tensors go. So one layer at a time has
them during a decode step, and every layer during a prefill or extension in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kvfrontier.cache.layer import LayerCache


class VectorCodec(Protocol):
    """Codes one vector by itself."""

    def encode(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """The parts that `vectors` `[n, head_dim]` are held in, each `[n, width]`."""

    def decode(self, parts: Sequence[Tensor], head_dim: int, dtype: torch.dtype) -> Tensor:
        """Parts `[..., width]` as vectors `[..., head_dim]` in `dtype`."""


class CodedLayer(LayerCache):
    """What all coded layers do around a call; a subclass codes and reads back."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None  # of the model's keys and values
        self.head_dims = (0, 0)  # of keys and of values

    def borrow(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """As in LayerCache."""
        super().borrow(keys, values, positions, lengths)
        self._begin(keys, values, positions)

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """As in LayerCache; the first call since `settle` reads the codes back."""
        if self.keys is None:
            if self.positions is not None:
                self.keys, self.values = self._decode()
            self._begin(keys, values, positions)
        super().append(keys, values, positions, lengths)

    def settle(self, shrink: bool = False) -> None:
        """Code what is new; only codes remain."""
        super().settle(shrink)
        self._encode()
        self.keys = self.values = None

    def _begin(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """New tokens come, each row's first at `positions[:, 0]`."""
        self.dtype, self.head_dims = keys.dtype, (keys.shape[3], values.shape[3])

    def _encode(self) -> None:
        """Bring the codes up to date with `keys` and `values`."""
        raise TypeError(f"{type(self).__name__} must define _encode()")

    def _decode(self) -> tuple[Tensor, Tensor]:
        """Keys and values `[batch, kv_heads, capacity, head_dim]`, finite in unused slots."""
        raise TypeError(f"{type(self).__name__} must define _decode()")


class VectorCodedLayer(CodedLayer):
    """Every key and value vector is coded by itself: codes are per-slot tensors, and any eviction policy may act.

    A token is coded once, when it settles; a surviving token's codes never change.
    """

    def __init__(self, codec: VectorCodec):
        super().__init__()
        self.codec = codec
        self.parts: list[list[str]] = [[], []]  # names in `aux` of what keys, and values, are held in

    def held(self) -> list[Tensor]:
        """Codes, scales and zeros of keys, then of values."""
        return [self.aux[name] for name in self._names() if name in self.aux]

    def hold(self, tensors: Sequence[Tensor] | None) -> None:
        """As in Held."""
        for index, name in enumerate(self._names()):
            if tensors is None:
                self.aux.pop(name, None)
            else:
                self.aux[name] = tensors[index]

    def aux_bytes(self) -> int:
        """As in LayerCache, without the codes."""
        return super().aux_bytes() - self.reserved_bytes()

    def _names(self) -> list[str]:
        return [name for names in self.parts for name in names]

    def _begin(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        super()._begin(keys, values, positions)
        self._new_from = positions[:, 0, None, None]

    def _encode(self) -> None:
        # Eviction may have moved the new tokens to any slot, but their positions tell them.
        row, head, slot = (self.used_positions() >= self._new_from).nonzero(as_tuple=True)
        for index, vectors in enumerate((self.keys, self.values)):
            coded = self.codec.encode(vectors[row, head, slot])
            self.parts[index] = [f"{('keys', 'values')[index]} {part}" for part in range(len(coded))]
            for name, codes in zip(self.parts[index], coded, strict=True):
                if name not in self.aux:
                    self.aux[name] = codes.new_zeros(*self.positions.shape, codes.shape[-1])
                self.aux[name][row, head, slot] = codes

    def _decode(self) -> tuple[Tensor, Tensor]:
        keys, values = (
            self.codec.decode([self.aux[name] for name in names], head_dim, self.dtype)
            for names, head_dim in zip(self.parts, self.head_dims, strict=True)
        )
        return keys, values
