"""A storage whose tokens lie in another memory between calls, in whatever form it holds them.

A call's first tokens bring a layer's tokens to the device; when the layer settles, what is new goes back and the device
lets go. With prefetching the next layer is brought while one computes: at most two layers are on the device at once.
Between the chunks of a reading plain tensors go and come too. Codes do not exist before the last chunk: until then a
layer of codes stays on the device, for full precision never crosses the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor

from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.link import Link, Transfer


class Shelf(Protocol):
    """Where one layer's tensors lie. Both calls start work that the link's thread does in their order."""

    link: Link
    frees_at_once: bool
    """A `put` of some entries copies them first: the tensors are free when it returns."""

    def put(self, tensors: Sequence[Tensor], used: Sequence[Tensor], written: Sequence[Tensor] | None) -> Transfer:
        """Take the entries in use, of which only the `written` ones are new; None: all are."""

    def get(self) -> tuple[list[Tensor], Transfer]:
        """Tensors on the device for what was put, zero in unused entries, filled when the transfer is done."""

    def host_bytes(self) -> int:
        """Bytes in use in host memory."""

    def disk_bytes(self) -> int:
        """Bytes in use in a file."""

    def reserved_bytes(self) -> int:
        """Bytes allocated in either."""


class TierLayer:
    """`inner`, whose `held` tensors lie on `shelf` between calls. Everything else is that layer's own."""

    def __init__(self, inner: LayerCache, shelf: Shelf, prefetches: bool):
        self.inner, self.shelf, self.prefetches = inner, shelf, prefetches
        self._away = False
        self._coming: tuple[list[Tensor], Transfer] | None = None
        self._going: Transfer | None = None
        self._fetched = False  # by the call that runs
        self._before: Tensor | None = None  # counts when it began; None: all of the layer is new
        self._moved: Tensor | None = None  # slots that eviction gave another token

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def link(self) -> Link:
        """What the shelf copies over."""
        return self.shelf.link

    @property
    def target_capacity(self) -> int:
        """As in LayerCache."""
        return self.inner.target_capacity

    @target_capacity.setter
    def target_capacity(self, slots: int) -> None:
        self.inner.target_capacity = slots

    @property
    def growth(self) -> int:
        """As in LayerCache."""
        return self.inner.growth

    @growth.setter
    def growth(self, slots: int) -> None:
        self.inner.growth = slots

    def append(self, keys: Tensor, values: Tensor, positions: Tensor, lengths: Sequence[int]) -> None:
        """As in LayerCache; the first call since `settle` brings the tokens."""
        if self._away:
            self._bring()
        elif self._before is not None:
            self._before = torch.minimum(self._before, self.inner.counts)
        self.inner.append(keys, values, positions, lengths)

    def prefetch(self) -> None:
        """Begin to bring the tokens."""
        if self._away and self.prefetches and self._coming is None:
            self._coming = self.shelf.get()

    def keep(self, slots: Tensor, counts: Tensor) -> None:
        """As in LayerCache; all of it is new."""
        self.inner.keep(slots, counts)
        self._before = None

    def drop(self, slots: Tensor, heads: Tensor | None = None) -> None:
        """As in LayerCache; the slots have other tokens now."""
        self.inner.drop(slots, heads)
        if self._before is not None:
            heads = torch.ones(slots.shape, dtype=torch.bool) if heads is None else heads
            mask = torch.zeros(self.inner.positions.shape, dtype=torch.bool)
            mask.scatter_(2, slots.cpu()[..., None], heads[..., None])
            self._moved = mask if self._moved is None else self._moved | mask

    def settle(self, shrink: bool = False) -> None:
        """As in LayerCache; then the tokens go where they lie."""
        self.inner.settle(shrink)
        self._send()

    def pause(self) -> None:
        """Between two chunks of a reading."""
        held = self.inner.held()
        if held and held[0] is self.inner.keys:
            self._send()

    def _send(self) -> None:
        inner = self.inner
        written = None if self._before is None else inner.written(self._before, self._moved)
        self._going = self.shelf.put(inner.held(), inner.entries(inner.counts), written)
        inner.hold(None)
        # A layer on its way out would be a third one, beside the one that computes and the one that comes.
        if not self.prefetches or (self._fetched and (written is None or not self.shelf.frees_at_once)):
            self._going.wait()
        self._away, self._fetched, self._before, self._moved = True, False, None, None

    def host_bytes(self) -> int:
        """Bytes of the tokens that lie in host memory."""
        return self.shelf.host_bytes() if self._away else 0

    def disk_bytes(self) -> int:
        """Bytes of the tokens that lie in a file."""
        return self.shelf.disk_bytes() if self._away else 0

    def reserved_bytes(self) -> int:
        """Bytes allocated on the device and on the shelf."""
        return self.inner.reserved_bytes() + self.shelf.reserved_bytes()

    def fork(self) -> TierLayer:
        """An independent copy, with a shelf of its own."""
        return deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> TierLayer:
        if self._going is not None:
            self._going.wait()
        copy = TierLayer(deepcopy(self.inner, memo), deepcopy(self.shelf, memo), self.prefetches)
        copy._away, copy._before, copy._moved = self._away, deepcopy(self._before), deepcopy(self._moved)
        copy._fetched = self._fetched
        return copy

    def _bring(self) -> None:
        tensors, transfer = self._coming or self.shelf.get()
        if self._going is not None:
            self._going.wait()
        transfer.wait()
        self.inner.hold(tensors)
        self._coming, self._away, self._fetched = None, False, True
        self._before = self.inner.counts.clone()
