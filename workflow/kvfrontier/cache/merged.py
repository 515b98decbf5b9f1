"""Two layers that share the directions of their vectors and keep lengths of their own (MiniCache's form).

At the end of a reading the deeper layer of a pair settles last and merges what is new in both; tokens that come while
decoding wait, as they are, for the end of the next reading. Slots are in the order of positions: nothing is evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvfrontier.cache.held import between
from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.precise import precise
from kvfrontier.parameters import tokens_of


def merge_directions(first: Tensor, second: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """The unit vectors a share `t` of the way from the directions of `first` to those of `second`, along the sphere
    (SLERP), and the angles between them; vectors `[..., head_dim]`.

    Directions that agree, or are opposite, define no arc: there the straight line between them does.
    """
    first, second = (torch.nn.functional.normalize(vectors, dim=-1, eps=1e-30) for vectors in (first, second))
    # arccos of the product would lose small angles.
    angle = 2 * torch.atan2((first - second).norm(dim=-1), (first + second).norm(dim=-1))
    wide, sine = angle[..., None], angle.sin()[..., None]
    arc = sine > 1e-4
    safe = sine.where(arc, torch.ones_like(sine))
    near = torch.where(arc, ((1 - t) * wide).sin() / safe, torch.full_like(sine, 1 - t))
    far = torch.where(arc, (t * wide).sin() / safe, torch.full_like(sine, t))
    return torch.nn.functional.normalize(near * first + far * second, dim=-1, eps=1e-30), angle


@dataclass
class Merged:
    """Keys, or values, of one reading's tokens in both layers; heads use the first `counts` and `apart_counts` entries.

    slots, apart_slots: int32 `[batch, kv_heads, n]`, where they belong; directions `[batch, kv_heads, n, head_dim]`;
    lengths, apart: one tensor for each of the two layers, of the tokens that are merged and of those that are not.
    """

    slots: Tensor
    counts: Tensor
    directions: Tensor
    lengths: tuple[Tensor, Tensor]
    apart_slots: Tensor
    apart_counts: Tensor
    apart: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, vectors: tuple[Tensor, Tensor], first: Tensor, counts: Tensor, t: float, gamma: float) -> Merged:
        """Merge slots `[first, counts)` `[batch, kv_heads]` of `vectors` but the share `gamma` with the largest angles,
        of equal ones the older."""
        dtype = vectors[0].dtype
        wide = [precise(layer) for layer in vectors]
        directions, angles = merge_directions(*wide, t)
        new = between(first, counts, angles.shape[2]).to(angles.device)
        order = angles.masked_fill(~new, -1).sort(dim=-1, descending=True, stable=True).indices
        rank = order.argsort(-1)
        fresh = counts - first
        apart_counts = torch.tensor([[tokens_of(gamma, n) for n in row] for row in fresh.tolist()])
        is_apart = rank < apart_counts.to(rank.device)[..., None]
        slots, apart_slots = _compact(new & ~is_apart), _compact(new & is_apart)
        lengths = tuple(_take(layer.norm(dim=-1, keepdim=True), slots).to(dtype) for layer in wide)
        apart = tuple(_take(layer, apart_slots) for layer in vectors)
        directions = _take(directions, slots).to(dtype)
        return cls(slots.int(), fresh - apart_counts, directions, lengths, apart_slots.int(), apart_counts, apart)

    def write(self, which: int, out: Tensor) -> None:
        """Put the vectors of the first (0) or the second layer (1) into their slots of `out`."""
        at = _places(self.slots, self.counts)
        row, head, entry = at[0]
        out[row, head, at[1]] = (self.directions * self.lengths[which])[row, head, entry]
        at = _places(self.apart_slots, self.apart_counts)
        row, head, entry = at[0]
        out[row, head, at[1]] = self.apart[which][row, head, entry]

    def tensors(self, which: int) -> tuple[list[Tensor], list[Tensor]]:
        """What a layer holds of it, and how many entries are in use; the directions are the second layer's."""
        tensors, used = [self.lengths[which], self.apart[which]], [self.counts, self.apart_counts]
        return (tensors, used) if which == 0 else ([*tensors, self.directions], [*used, self.counts])


class PairedLayer(LayerCache):
    """One layer of a pair: `mate` is the other one's layer before it, None in the first of the two."""

    def __init__(self, mate: PairedLayer | None, t: float, gamma: float):
        super().__init__()
        self.mate, self.t, self.gamma = mate, t, gamma
        self.merged: list[tuple[Merged, Merged]] = []  # keys and values of each reading; the pair shares them
        self.settled = torch.zeros(0, 0, dtype=torch.long)  # tokens that are merged
        self.tails: tuple[Tensor, ...] = ()  # keys and values of the others, from slot `settled` on

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """As in LayerCache; the first call since `settle` reads the tokens back."""
        if self.keys is None and self.positions is not None:
            self.keys, self.values = (self._read_back(index) for index in range(2))
        super().append(keys, values, positions, lengths)

    def keep(self, slots: Tensor, counts: Tensor) -> None:
        """Not possible: the layers of a pair would keep different tokens."""
        raise RuntimeError("tokens of merged layers cannot be evicted")

    def drop(self, slots: Tensor, heads: Tensor | None = None) -> None:
        """Not possible, as `keep`."""
        raise RuntimeError("tokens of merged layers cannot be evicted")

    def settle(self, shrink: bool = False) -> None:
        """As in LayerCache; when a reading ends the second layer merges, and till then the first one waits."""
        super().settle(shrink)
        if not self.settled.numel():
            self.settled = torch.zeros_like(self.counts)
        if not shrink:
            self._let_go()
        elif self.mate is not None:
            pairs = zip((self.mate.keys, self.mate.values), (self.keys, self.values), strict=True)
            keys, values = (Merged.of(pair, self.settled, self.counts, self.t, self.gamma) for pair in pairs)
            for layer in (self.mate, self):
                layer.merged.append((keys, values))
                layer.settled = layer.counts.clone()
                layer._let_go()

    def held(self) -> list[Tensor]:
        """Lengths, vectors apart, in the second layer directions; and the tokens that wait."""
        return [tensor for tensors, _ in self._parts() for tensor in tensors]

    def entries(self, counts: Tensor) -> list[Tensor]:
        """As in Held."""
        return [used for _, parts in self._parts() for used in parts]

    def aux_bytes(self) -> int:
        """As in LayerCache, and the slots of what is merged."""
        slots = [kind for pair in self.merged for part in pair for kind in (part.slots, part.apart_slots)]
        return super().aux_bytes() + (0 if self.mate is None else sum(slot.nbytes for slot in slots))

    def _parts(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        which = 0 if self.mate is None else 1
        waiting = [self.counts - self.settled] * len(self.tails)
        return [*(part.tensors(which) for pair in self.merged for part in pair), (list(self.tails), waiting)]

    def _let_go(self) -> None:
        """Hold the tokens that are not merged, and no full tensors."""
        first = between(self.settled, self.counts, self.capacity)
        waiting = self.counts - self.settled
        room = self.capacity - int(self.settled.min())
        where, entries = first.nonzero(as_tuple=True), between(torch.zeros_like(waiting), waiting, room)
        into = entries.nonzero(as_tuple=True)
        tails = []
        for full in (self.keys, self.values):
            tail = full.new_zeros(*self.counts.shape, room, full.shape[3])
            tail[_on(into, full)] = full[_on(where, full)]
            tails.append(tail)
        self.tails, self.keys, self.values = tuple(tails), None, None

    def _read_back(self, index: int) -> Tensor:
        tail = self.tails[index]
        full = tail.new_zeros(*self.counts.shape, self.capacity, tail.shape[3])
        for pair in self.merged:
            pair[index].write(0 if self.mate is None else 1, full)
        where = between(self.settled, self.counts, self.capacity).nonzero(as_tuple=True)
        waiting = self.counts - self.settled
        entries = between(torch.zeros_like(waiting), waiting, tail.shape[2]).nonzero(as_tuple=True)
        full[_on(where, full)] = tail[_on(entries, full)]
        return full


def _on(where: tuple[Tensor, ...], like: Tensor) -> tuple[Tensor, ...]:
    return tuple(index.to(like.device) for index in where)


def _compact(mask: Tensor) -> Tensor:
    """The indices of the true entries `[batch, kv_heads, n]`, ascending, one row's filled up with others."""
    most = int(mask.sum(-1).max())
    return mask.int().sort(dim=-1, descending=True, stable=True).indices[..., :most]


def _take(vectors: Tensor, slots: Tensor) -> Tensor:
    return vectors.gather(2, slots[..., None].expand(*slots.shape, vectors.shape[3]))


def _places(slots: Tensor, counts: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """(row, head, entry) of the entries in use, and the slot of each."""
    where = between(torch.zeros_like(counts), counts, slots.shape[2]).nonzero(as_tuple=True)
    where = tuple(index.to(slots.device) for index in where)
    return where, slots[where].long()
