"""One layer's keys and values: preallocated, ragged over rows and KV heads, evicted in place.

A slot holds one token of one KV head. Slots `[0, counts[row, head])` are in use; their order is *not* the order of
positions (eviction moves the newest slot into the freed one). Padding never enters.

A strategy may hold tokens in another form or another tier: `Strategy.storage` then returns a subclass. Its contract:

- From `borrow` or `append` until `settle`, `keys` and `values` are full-precision tensors on the model's device with
  every slot in use: attention and the strategy's hooks read them, `keep` and `drop` move them. `settle` ends a decode
  step and the *last* chunk of a prefill or extension, so that chunks see each other as the model made them. Between
  chunks `pause` may take tokens away; `append` brings them back, and `prefetch` before that.
- Between calls tokens may lie anywhere, and `keys` and `values` may be None (where a form of its own does `attend`,
  until `used`, `keep` or `drop`). `positions`, `counts` and `aux` stay.
- What is kept by slot follows `keep` and `drop`, at best as `aux` tensors; a form that cannot lose a token says so.
- `held` (see `cache/held.py`) names the tensors that hold the tokens between calls; `cache/tier.py` moves them.
- Every byte is counted once: `used_bytes` (device), `host_bytes` or `disk_bytes` for the tokens, `aux_bytes` for all
  the rest; `reserved_bytes` is the allocation behind the first three. The strategy's `kv_bytes` is their formula.
- Layers may share a link. `deepcopy` of all of them is a fork; a file or a running transfer needs one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from kvfrontier.cache.attention import attend_decode
from kvfrontier.cache.held import Held

EMPTY = -1  # position of an unused slot


class LayerCache(Held):
    """Keys and values `[batch, kv_heads, capacity, head_dim]` with the original position of each slot's token.

    positions: int32 `[batch, kv_heads, capacity]`, EMPTY where unused.
    aux: per-slot tensors `[batch, kv_heads, capacity, ...]` by name; they follow every gather and move.
    extras: a strategy's other tensors `[batch, ...]`; counted in bytes, copied by `fork`, otherwise left alone.
    counts: used slots `[batch, kv_heads]`, on the CPU so that reading them never waits for the device.
    target_capacity: slots to allocate when the tensors are next made (kept tokens plus growth).
    growth: until a reading settles, slots to allocate beyond the largest head's, should that keep more than planned.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.positions: Tensor | None = None
        self.aux: dict[str, Tensor] = {}
        self.extras: dict[str, Tensor] = {}
        self.counts: Tensor = torch.zeros(0, 0, dtype=torch.long)
        self.slots = 0  # the largest count
        self.uniform = True  # all counts are equal
        self.target_capacity = 0
        self.growth = 0
        self.borrowed = False  # keys and values are the model's own tensors, not our allocation

    @property
    def capacity(self) -> int:
        """Slots allocated per row and KV head."""
        return 0 if self.positions is None else self.positions.shape[2]

    def used(self) -> tuple[Tensor, Tensor]:
        """Keys and values up to the largest count; slots beyond a row's own count hold finite garbage."""
        return self.keys[:, :, : self.slots], self.values[:, :, : self.slots]

    def used_positions(self) -> Tensor:
        """Positions `[batch, kv_heads, slots]` in slot order, EMPTY beyond a row's own count."""
        return self.positions[:, :, : self.slots]

    def valid(self) -> Tensor | None:
        """`[batch, kv_heads, slots]`, True where a slot is in use; None when all of them are."""
        return None if self.uniform else self.used_positions() >= 0

    def kept_positions(self) -> Tensor:
        """Positions of the kept tokens `[batch, kv_heads, slots]`, ascending, EMPTY last."""
        positions = self.used_positions().long()
        last = torch.iinfo(torch.long).max
        ordered = positions.masked_fill(positions < 0, last).sort(dim=-1).values
        return ordered.masked_fill(ordered == last, EMPTY)

    def auxiliary(self, name: str) -> Tensor:
        """The float32 per-slot tensor of that name `[batch, kv_heads, capacity]`, zeros at first."""
        if name not in self.aux:
            self.aux[name] = torch.zeros(self.positions.shape, dtype=torch.float32, device=self.positions.device)
        return self.aux[name]

    def borrow(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """Look at a prefill's tensors `[batch, kv_heads, new, head_dim]`, of row b the first `lengths[b]`: no copy.

        `keep` then writes only the kept tokens into an allocation, and `settle` all that is left.
        """
        batch, kv_heads, new, _ = keys.shape
        self.keys, self.values, self.borrowed = keys, values, True
        padding = torch.arange(new, device=keys.device) >= torch.tensor(lengths, device=keys.device)[:, None]
        masked = positions.to(torch.int32).masked_fill(padding, EMPTY)
        self.positions = masked[:, None].expand(batch, kv_heads, new).contiguous()
        self._set_counts(torch.tensor(lengths)[:, None].expand(batch, kv_heads).clone())

    def settle(self, shrink: bool = False) -> None:
        """Copy what is still borrowed into an allocation of `target_capacity`; `shrink`: give back what exceeds it."""
        target, self.growth = max(self.target_capacity, self.slots + self.growth), 0  # the room is there from now on
        if self.borrowed or (shrink and self.capacity > target):
            self._reallocate(target)

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """Add the first `lengths[b]` of the new tokens `[batch, kv_heads, new, head_dim]`, positions `[batch, new]`."""
        batch, kv_heads, new, _ = keys.shape
        if self.keys is None:
            self._allocate(keys, values, max(self.target_capacity, new))
            self.counts = torch.zeros(batch, kv_heads, dtype=torch.long)
        if self.slots + new > self.capacity:
            spare = self.slots // 4 if new == 1 else 0  # nobody reserved for these decode steps: more will follow
            self._reallocate(max(self.target_capacity, self.slots + new + spare))
        if self.uniform and min(lengths) == new:
            self._append_block(keys, values, positions)
        else:
            self._append_ragged(keys, values, positions, torch.tensor(lengths))

    def _append_block(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        start, end = self.slots, self.slots + keys.shape[2]
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.positions[:, :, start:end] = positions[:, None]
        for tensor in self.aux.values():
            tensor[:, :, start:end] = 0
        self.counts += end - start
        self.slots = end

    def _append_ragged(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Tensor) -> None:
        batch, kv_heads, new, _ = keys.shape
        real = (torch.arange(new) < lengths[:, None, None]).expand(batch, kv_heads, new)
        row, head, token = real.nonzero(as_tuple=True)
        slot = self.counts[row, head] + token
        row, head, token, slot = (index.to(keys.device) for index in (row, head, token, slot))
        self.keys[row, head, slot] = keys[row, head, token]
        self.values[row, head, slot] = values[row, head, token]
        self.positions[row, head, slot] = positions[row, token].to(torch.int32)
        for tensor in self.aux.values():
            tensor[row, head, slot] = 0
        self._set_counts(self.counts + lengths[:, None])

    def keep(self, slots: Tensor, counts: Tensor) -> None:
        """Keep these slots, in this order: `[batch, kv_heads, kept]`, of which the first `counts[row, head]` count.

        The allocation becomes `target_capacity` (or `kept + growth`, if larger): a prefill's rest is never stored.
        """
        kept = slots.shape[2]
        beyond = torch.arange(kept, device=slots.device) >= counts.to(slots.device)[..., None]
        slots = slots.masked_fill(beyond, 0)
        keys, values = _pick(self.keys, slots), _pick(self.values, slots)
        positions = self.positions.gather(2, slots).masked_fill(beyond, EMPTY)
        aux = {name: _pick(tensor, slots) for name, tensor in self.aux.items()}
        capacity = max(self.target_capacity, kept + self.growth)
        if self.borrowed or capacity != self.capacity:
            self._allocate(keys, values, capacity)
        self.keys[:, :, :kept] = keys
        self.values[:, :, :kept] = values
        self.positions[:, :, :kept] = positions
        self.positions[:, :, kept:] = EMPTY
        self._copy_aux(aux, kept)
        self._set_counts(counts)

    def attend(
        self, queries: Tensor, scale: float, with_mass: bool, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """A decode step's attention over all slots in use, as `attend_decode`."""
        return attend_decode(queries, *self.used(), scale, self.valid(), with_mass, sinks)

    def drop(self, slots: Tensor, heads: Tensor | None = None) -> None:
        """Evict one token a KV head: slot `[batch, kv_heads]` is overwritten by the head's last one. O(1) in the cache.

        heads: `[batch, kv_heads]` on the CPU, False where nothing is evicted; None: everywhere.
        """
        if heads is None and self.uniform:
            self._drop_everywhere(slots[..., None])
            return
        heads = torch.ones_like(self.counts, dtype=torch.bool) if heads is None else heads
        last = (self.counts - 1).to(slots.device)
        slots = torch.where(heads.to(slots.device), slots, last)[..., None]  # [batch, kv_heads, 1]
        last = last[..., None]
        for tensor in (self.keys, self.values, self.positions, *self.aux.values()):
            tensor.scatter_(2, wide(slots, tensor), _pick(tensor, last))
        gone = self.positions.gather(2, last).masked_fill(heads.to(slots.device)[..., None], EMPTY)
        self.positions.scatter_(2, last, gone)
        self._set_counts(self.counts - heads.long())

    def _drop_everywhere(self, slots: Tensor) -> None:
        """The same for all heads, whose last slot is the same: `slots` `[batch, kv_heads, 1]`."""
        last = self.slots - 1
        for tensor in (self.keys, self.values, self.positions, *self.aux.values()):
            tensor.scatter_(2, wide(slots, tensor), tensor[:, :, last : last + 1].clone())
        self.positions[:, :, last] = EMPTY
        self.counts -= 1
        self.slots = last

    def fork(self) -> LayerCache:
        """An independent copy with the same capacity."""
        return deepcopy(self)

    def aux_bytes(self) -> int:
        """Bytes of positions and of what a strategy keeps beside keys and values."""
        tensors = (*self.aux.values(), *self.extras.values())
        return sum(tensor.nbytes for tensor in tensors) + (0 if self.positions is None else self.positions.nbytes)

    def _set_counts(self, counts: Tensor) -> None:
        self.counts = counts
        self.slots = int(counts.max())
        self.uniform = bool((counts == self.slots).all())

    def _allocate(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        batch, kv_heads = keys.shape[:2]
        # Zeros, not empty: a masked slot has weight 0, and 0 x NaN would be NaN.
        self.keys = keys.new_zeros(batch, kv_heads, capacity, keys.shape[3])
        self.values = values.new_zeros(batch, kv_heads, capacity, values.shape[3])
        self.positions = torch.full((batch, kv_heads, capacity), EMPTY, dtype=torch.int32, device=keys.device)
        self.aux = {}
        self.borrowed = False

    def _reallocate(self, capacity: int) -> None:
        keys, values, positions, aux = self.keys, self.values, self.positions, self.aux
        self._allocate(keys, values, capacity)
        self._copy_used(keys, values, positions, aux, self.slots)

    def _copy_used(self, keys: Tensor, values: Tensor, positions: Tensor, aux: dict[str, Tensor], slots: int) -> None:
        self.keys[:, :, :slots] = keys[:, :, :slots]
        self.values[:, :, :slots] = values[:, :, :slots]
        self.positions[:, :, :slots] = positions[:, :, :slots]
        self._copy_aux(aux, slots)

    def _copy_aux(self, aux: dict[str, Tensor], slots: int) -> None:
        """Fill the first slots from tensors of another capacity; the rest of a new tensor is zero."""
        for name, tensor in aux.items():
            if name not in self.aux:
                self.aux[name] = tensor.new_zeros(*self.positions.shape, *tensor.shape[3:])
            self.aux[name][:, :, :slots] = tensor[:, :, :slots]


def wide(slots: Tensor, tensor: Tensor) -> Tensor:
    """Slots `[batch, kv_heads, n]` as an index into the tensor's last axis too, where it has one."""
    return slots if tensor.dim() == 3 else slots[..., None].expand(*slots.shape, tensor.shape[3])


def _pick(tensor: Tensor, slots: Tensor) -> Tensor:
    """`[batch, kv_heads, n, ...]` at those slots."""
    return tensor.gather(2, wide(slots, tensor))
