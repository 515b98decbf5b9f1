"""A layer whose keys are coded per channel over groups of tokens, and whose values are coded per token (KIVI's form).

With n tokens of a head, the oldest n - n mod R have their keys in codes, and the oldest max(0, n - R) their values; the
rest, the residual, is held as it is. So the slots must be in the order of positions, and the state of each head follows
from its own count alone: rows of a batch never share a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvfrontier.cache.coded import CodedLayer
from kvfrontier.cache.codes import dequantise, pack, quantise, unpack
from kvfrontier.cache.group_sizes import even_group
from kvfrontier.cache.held import between, on_ring


class ChannelCodedLayer(CodedLayer):
    """Codes of `bits` bits, groups of `group_size` tokens (keys) or channels (values), a residual of R tokens.

    Whatever evicts makes all that is left new: survivors are read back and grouped again when the call settles.
    """

    def __init__(self, bits: int, group_size: int, residual_tokens: int):
        super().__init__()
        self.bits, self.group, self.residual = bits, group_size, residual_tokens
        self.settled = torch.zeros(0, 0, dtype=torch.long)  # counts at the last `settle`: what is in codes
        self.key_parts: tuple[Tensor, ...] = ()  # codes [batch, kv_heads, groups, head_dim, bytes]; scale, zero
        self.value_parts: tuple[Tensor, ...] = ()  # codes [batch, kv_heads, capacity, groups, bytes]; scale, zero
        self.residuals: tuple[Tensor, ...] = ()  # keys, values [batch, kv_heads, R, head_dim]; slot s at s mod R

    def keep(self, slots: Tensor, counts: Tensor) -> None:
        """As in LayerCache; the survivors are grouped anew."""
        super().keep(slots, counts)
        self.settled = torch.zeros_like(counts)

    def drop(self, slots: Tensor, heads: Tensor | None = None) -> None:
        """Not possible: the last token would move into a group of others."""
        raise RuntimeError("tokens in groups cannot be evicted one by one; evict at the end of a prefill only")

    def held(self) -> list[Tensor]:
        """Key groups and values, each as codes, scales and zeros; the residual's keys and values."""
        return [*self.key_parts, *self.value_parts, *self.residuals]

    def hold(self, tensors: Sequence[Tensor] | None) -> None:
        """As in Held."""
        parts = () if tensors is None else tuple(tensors)
        self.key_parts, self.value_parts, self.residuals = parts[:3], parts[3:6], parts[6:]

    def entries(self, counts: Tensor) -> list[Tensor]:
        """Groups of keys, values, and what is left of both."""
        keys, values = self._coded_keys(counts), self._coded_values(counts)
        used = [keys // self.group] * 3 + [values] * 3 + [counts - keys, counts - values]
        return used if self.held() else []

    def written(self, before: Tensor, moved: Tensor | None) -> list[Tensor]:
        """As in Held; no slot ever gets another token."""
        now, held = self.counts, self.held()
        keys, values = self._coded_keys(now), self._coded_values(now)
        groups = between(self._coded_keys(before) // self.group, keys // self.group, held[0].shape[2])
        vectors = between(self._coded_values(before), values, held[3].shape[2])
        rings = (
            on_ring(torch.maximum(first, before), now, tensor.shape[2], self.residual)
            for first, tensor in zip((keys, values), held[6:], strict=True)
        )
        return [*[groups] * 3, *[vectors] * 3, *rings]

    def _begin(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        super()._begin(keys, values, positions)
        if not self.settled.numel():
            self.settled = torch.zeros(keys.shape[:2], dtype=torch.long)

    def _coded_keys(self, counts: Tensor) -> Tensor:
        return counts - counts % self.residual

    def _coded_values(self, counts: Tensor) -> Tensor:
        return (counts - self.residual).clamp(min=0)

    def _encode(self) -> None:
        before, now = self.settled, self.counts
        first, last = self._coded_keys(before) // self.group, self._coded_keys(now) // self.group
        groups = _range_indices(first, last, self.keys.device)
        channels = self._grouped_keys()[groups].transpose(1, 2)  # [n, head_dim, group]
        self.key_parts = self._write(self.key_parts, groups, channels, self.capacity // self.group)
        tokens = _range_indices(self._coded_values(before), self._coded_values(now), self.keys.device)
        vectors = self.values[tokens].unflatten(1, (-1, even_group(self.group, self.head_dims[1])))
        self.value_parts = self._write(self.value_parts, tokens, vectors, self.capacity)
        self._keep_residuals(now)
        self.settled = now.clone()

    def _grouped_keys(self) -> Tensor:
        """The slots that fill groups, `[batch, kv_heads, groups, group, head_dim]`."""
        groups = self.capacity // self.group
        return self.keys[:, :, : groups * self.group].unflatten(2, (groups, self.group))

    def _write(
        self, parts: tuple[Tensor, ...], where: tuple[Tensor, ...], groups: Tensor, capacity: int
    ) -> tuple[Tensor, ...]:
        """Code `groups` `[n, rows, size]` and put them `where`; the tensors are made, or grow, as the layer does."""
        codes, scale, zero = quantise(groups, self.bits)
        coded = (pack(codes, self.bits), scale, zero)
        if not parts or parts[0].shape[2] != capacity:
            grown = tuple(part.new_zeros(*self.settled.shape, capacity, *part.shape[1:]) for part in coded)
            for old, new in zip(parts, grown, strict=False):
                shared = min(capacity, old.shape[2])
                new[:, :, :shared] = old[:, :, :shared]
            parts = grown
        for part, new in zip(parts, coded, strict=True):
            part[where] = new
        return parts

    def _keep_residuals(self, counts: Tensor) -> None:
        coded = (self._coded_keys(counts), self._coded_values(counts))
        slots = min(self.residual, self.capacity)
        if not self.residuals or self.residuals[0].shape[2] != slots:
            shape = (*counts.shape, slots)
            self.residuals = tuple(full.new_zeros(*shape, full.shape[3]) for full in (self.keys, self.values))
        for full, residual, start in zip((self.keys, self.values), self.residuals, coded, strict=True):
            row, head, slot = _range_indices(start, counts, full.device)
            residual[row, head, slot % self.residual] = full[row, head, slot]

    def _decode(self) -> tuple[Tensor, Tensor]:
        shape = (*self.counts.shape, self.capacity)
        full = tuple(part.new_zeros(*shape, part.shape[3]) for part in self.residuals)
        codes, scale, zero = self.key_parts
        keys = dequantise(unpack(codes, self.bits, self.group), scale, zero, self.dtype).transpose(3, 4).flatten(2, 3)
        full[0][:, :, : keys.shape[2]] = keys
        codes, scale, zero = self.value_parts
        size = self.head_dims[1] // scale.shape[3]
        full[1][:] = dequantise(unpack(codes, self.bits, size), scale, zero, self.dtype).flatten(3)
        coded = (self._coded_keys(self.counts), self._coded_values(self.counts))
        for vectors, residual, start in zip(full, self.residuals, coded, strict=True):
            row, head, slot = _range_indices(start, self.counts, vectors.device)
            vectors[row, head, slot] = residual[row, head, slot % self.residual]
        return full


def _range_indices(first: Tensor, last: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(row, head, index) of every index in `[first, last)` of each head; both `[batch, kv_heads]`."""
    inside = between(first, last, int(last.max()) if last.numel() else 0)
    row, head, index = inside.nonzero(as_tuple=True)
    return row.to(device), head.to(device), index.to(device)
