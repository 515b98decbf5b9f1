"""Which tensors hold a layer's tokens between calls: what is counted as its bytes, and what a tier moves elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kvfrontier.cache.link import Link


class Held:
    """A layer's keys and values as such; a storage in another form says what it holds instead.

    A held tensor has entries `[batch, kv_heads, entries, ...]`: a slot each, or a group of tokens. Of every head the
    first so many are in use.
    """

    keys: Tensor | None
    values: Tensor | None
    counts: Tensor
    link: Link | None = None
    """What tokens are copied over, where they are; layers that share one are counted once."""

    def held(self) -> list[Tensor]:
        """The tensors that hold the tokens between calls; none while they lie elsewhere."""
        return [] if self.keys is None else [self.keys, self.values]

    def hold(self, tensors: Sequence[Tensor] | None) -> None:
        """Put tensors in the places of those in `held`; None: let go of them."""
        self.keys, self.values = (None, None) if tensors is None else tensors

    def entries(self, counts: Tensor) -> list[Tensor]:
        """How many entries of each held tensor are in use when heads have `counts` tokens `[batch, kv_heads]`."""
        return [counts] * len(self.held())

    def written(self, before: Tensor, moved: Tensor | None) -> list[Tensor]:
        """Which entries in use are new since heads had `before` tokens: `[batch, kv_heads, entries]` on the CPU.

        moved: `[batch, kv_heads, capacity]`, slots that eviction gave another token since; None: no slot.
        """
        slots = between(before, self.counts, self.positions.shape[2])
        if moved is not None:
            slots |= moved & between(torch.zeros_like(before), self.counts, slots.shape[2])
        return [slots] * len(self.held())

    def prefetch(self) -> None:
        """The layer before this one has begun its part of a call: tokens that lie elsewhere may come."""

    def pause(self) -> None:
        """A chunk of a reading has ended that is not the last: tokens may go, as long as nothing of them is lost."""

    def used_bytes(self) -> int:
        """Bytes on the device of the tokens, in the form they are held in, summed over rows and heads."""
        return bytes_in_use(self.held(), self.entries(self.counts))

    def host_bytes(self) -> int:
        """Bytes of the tokens that lie in host memory, to be fetched."""
        return 0

    def disk_bytes(self) -> int:
        """Bytes of the tokens that lie in a file, to be read."""
        return 0

    def reserved_bytes(self) -> int:
        """Bytes of what is allocated for tokens in any memory, used or not."""
        return sum(tensor.nbytes for tensor in self.held())


def bytes_in_use(tensors: Sequence[Tensor], used: Sequence[Tensor]) -> int:
    """Bytes of the first `used` `[batch, kv_heads]` entries of each tensor."""
    pairs = zip(tensors, used, strict=True)
    return sum(int(count.sum()) * tensor.shape[3:].numel() * tensor.element_size() for tensor, count in pairs)


def between(first: Tensor, last: Tensor, entries: int) -> Tensor:
    """True for the entries `[first, last)` of each head: `[batch, kv_heads, entries]`."""
    entry = torch.arange(entries)
    return (entry >= first[..., None]) & (entry < last[..., None])


def on_ring(first: Tensor, last: Tensor, entries: int, around: int) -> Tensor:
    """`between` where entry e holds the slots e, e + `around`, ...; at most one of those is in `[first, last)`."""
    return (torch.arange(entries) - first[..., None]) % around < (last - first)[..., None]


def blocks(used: Tensor, by_head: bool = False) -> Iterator[tuple[slice, slice, slice]]:
    """Rectangles that are in use, as (rows, heads, entries): the whole batch, a row, or one head of it.

    by_head: always one head, whose entries lie side by side in memory.
    """
    batch, kv_heads = used.shape
    if not by_head and bool((used == used[0, 0]).all()):
        rows = [(slice(0, batch), slice(0, kv_heads), int(used[0, 0]))]
    else:
        rows = []
        for row, counts in enumerate(used.tolist()):
            if not by_head and len(set(counts)) == 1:
                rows.append((slice(row, row + 1), slice(0, kv_heads), counts[0]))
            else:
                rows += [(slice(row, row + 1), slice(head, head + 1), count) for head, count in enumerate(counts)]
    yield from ((row, head, slice(0, count)) for row, head, count in rows if count)
