"""A layer whose heads keep different numbers of tokens, held head after head in one buffer, without padding.

While a prefill or an extension runs, its tokens are the plain tensors of `cache/layer.py`, as wide as the largest head;
`settle` packs them. Decode steps write to the packed buffers and read from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfrontier.cache.attention import attend_decode
from kvfrontier.cache.layer import LayerCache, wide


class RaggedLayer(LayerCache):
    """`keys` and `values` are None while packed; what asks for them by `used`, `keep` or `drop` has them unpacked.

    packed: keys and values `[1, 1, slots, head_dim]`: the heads of the first row, one after the other, then the next
        row's. Each has its own tokens and, at its end, `spare` free slots; None: not packed. A layer whose heads all
        have as many tokens is never packed: nothing in it is padding.
    Positions and `aux` stay `[batch, kv_heads, capacity]`. A tier under this layer would have to know the packed form.
    """

    def __init__(self) -> None:
        super().__init__()
        self.packed: list[Tensor] | None = None
        self.spare = 0
        self._rooms: list[int] = []  # slots of each head in `packed`
        self._starts: Tensor | None = None  # its first one `[batch, kv_heads, 1]`, on the device

    def held(self) -> list[Tensor]:
        """As in Held; packed tensors have the entries of all heads in one axis."""
        return super().held() if self.packed is None else self.packed

    def used(self) -> tuple[Tensor, Tensor]:
        """As in LayerCache: unpacked until the layer settles."""
        self._unpack(self.capacity)
        return super().used()

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """As in LayerCache; one token of every row goes to where the heads' other tokens are."""
        if self.packed is None or keys.shape[2] > 1 or min(lengths) == 0:
            self._unpack(max(self.target_capacity, self.slots + keys.shape[2]))
            super().append(keys, values, positions, lengths)
            return
        if self.spare == 0:  # nobody reserved for these decode steps: more will follow
            self._unpack(self.slots + 1 + self.slots // 4)
            self._pack(self.capacity - self.slots)
        slots = self.counts.to(positions.device)[..., None]  # [batch, kv_heads, 1]
        self.positions.scatter_(2, slots, positions[:, None].to(torch.int32).expand(slots.shape))
        for tensor in self.aux.values():
            tensor.scatter_(2, wide(slots, tensor), 0)
        ends = (self._starts + slots).flatten()
        for flat, new in zip(self.packed, (keys, values), strict=True):
            flat.index_copy_(2, ends, new.reshape(1, 1, -1, new.shape[3]))
        self.counts, self.slots, self.spare = self.counts + 1, self.slots + 1, self.spare - 1

    def attend(
        self, queries: Tensor, scale: float, with_mass: bool, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """As in LayerCache; one call for each head of each row, which reads its tokens and nothing else."""
        if self.packed is None:
            return super().attend(queries, scale, with_mass, sinks)
        batch, q_heads, _, head_dim = queries.shape
        kv_heads = self.counts.shape[1]
        asked = queries.reshape(batch * kv_heads, 1, -1, 1, head_dim).unbind()
        beside = [None] * kv_heads if sinks is None else sinks.view(kv_heads, -1).unbind()
        parts = [
            attend_decode(asking, keys, values, scale, None, with_mass, logits)
            for asking, (keys, values), logits in zip(asked, self._heads(), cycle(beside), strict=False)
        ]
        out = torch.cat([part for part, _ in parts]).view(batch, q_heads, 1, -1)
        if not with_mass:
            return out, None
        mass = [F.pad(part, (0, self.slots - part.shape[2])) for _, part in parts]
        return out, torch.cat(mass).view(batch, q_heads, -1)

    def keep(self, slots: Tensor, counts: Tensor) -> None:
        """As in LayerCache."""
        self._unpack(self.capacity)
        super().keep(slots, counts)

    def drop(self, slots: Tensor, heads: Tensor | None = None) -> None:
        """As in LayerCache."""
        self._unpack(self.capacity)
        super().drop(slots, heads)

    def settle(self, shrink: bool = False) -> None:
        """Pack what is not; each head gets the same growth."""
        if self.packed is None:
            growth = self.growth
            super().settle(shrink)
            if not self.uniform:
                self._pack(growth or self.capacity - self.slots)

    def _heads(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values `[1, 1, count, head_dim]` of each head of each row, row by row: views, packed or not."""
        if self.packed is None:
            tensors = (self.keys, self.values)
            rooms = [[head[None, None] for row in tensor for head in row] for tensor in tensors]
        else:
            rooms = [flat.split(self._rooms, 2) for flat in self.packed]
        for keys, values, count in zip(*rooms, self.counts.flatten().tolist(), strict=True):
            yield keys.narrow(2, 0, count), values.narrow(2, 0, count)

    def _pack(self, spare: int) -> None:
        held = list(self._heads())
        rooms = (self.counts + spare).flatten()
        self._rooms, self.spare = rooms.tolist(), spare
        self._starts = (rooms.cumsum(0) - rooms).view(*self.counts.shape, 1).to(self.positions.device)
        self.packed = [part.new_empty(1, 1, sum(self._rooms), part.shape[3]) for part in held[0]]
        self._fill(held)
        self.keys = self.values = None

    def _unpack(self, capacity: int) -> None:
        """Plain tensors of so many slots again, if packed."""
        if self.packed is None:
            return
        held, positions, aux = list(self._heads()), self.positions, self.aux
        like = [part.new_empty(*self.counts.shape, 0, part.shape[3]) for part in held[0]]
        self.packed = None
        self._allocate(*like, capacity)
        self._fill(held)
        self.positions[:, :, : self.slots] = positions[:, :, : self.slots]
        self._copy_aux(aux, self.slots)

    def _fill(self, held: Sequence[tuple[Tensor, Tensor]]) -> None:
        for mine, theirs in zip(self._heads(), held, strict=True):
            for part, tokens in zip(mine, theirs, strict=True):
                part.copy_(tokens)
