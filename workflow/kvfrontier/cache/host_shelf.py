"""One layer's tensors in host memory: pinned beside a CUDA device, and RAM like the device's own on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from kvfrontier.cache.held import blocks, bytes_in_use
from kvfrontier.cache.link import Link, Transfer, host_empty


class HostShelf:
    """Tensors of the shapes that the layer has on the device; only entries in use are copied, either way."""

    frees_at_once = True

    def __init__(self, link: Link):
        self.link = link
        self.tensors: list[Tensor] = []
        self.used: list[Tensor] = []
        self.device = torch.device("cpu")

    def put(self, tensors: Sequence[Tensor], used: Sequence[Tensor], written: Sequence[Tensor] | None) -> Transfer:
        """As in Shelf."""
        self.used, self.device = [count.clone() for count in used], tensors[0].device
        if written is None:
            # The tensors stay until they are copied: not more than one layer's at a time.
            self.link.drain()
            self._resize(tensors, keep=False)
            hosts, tensors = list(self.tensors), list(tensors)
            return self.link.submit(lambda: self._put_all(tensors, hosts, used), self.device)
        self._resize(tensors, keep=True)
        staged = []
        for tensor, host, mask in zip(tensors, self.tensors, written, strict=True):
            where = mask.nonzero(as_tuple=True)
            if where[0].numel():
                staged.append((tensor[tuple(index.to(self.device) for index in where)], host, where))
        return self.link.submit(lambda: self._put_entries(staged), self.device)

    def get(self) -> tuple[list[Tensor], Transfer]:
        """As in Shelf."""
        hosts, used = list(self.tensors), list(self.used)
        tensors = [torch.empty(host.shape, dtype=host.dtype, device=self.device) for host in hosts]

        def fetch() -> None:
            for host, tensor, count in zip(hosts, tensors, used, strict=True):
                # Unused entries must be finite.
                tensor[:, :, int(count.min()) :] = 0
                for block in blocks(count, by_head=self.device.type == "cuda"):
                    self.link.fetch(host[block], tensor[block])

        return tensors, self.link.submit(fetch, self.device)

    def host_bytes(self) -> int:
        """As in Shelf."""
        return bytes_in_use(self.tensors, self.used)

    def disk_bytes(self) -> int:
        """As in Shelf."""
        return 0

    def reserved_bytes(self) -> int:
        """As in Shelf."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def _resize(self, tensors: Sequence[Tensor], keep: bool) -> None:
        """Give the shelf the shapes of `tensors`; `keep`: with what it has."""
        if [tensor.shape for tensor in tensors] == [host.shape for host in self.tensors]:
            return
        hosts = [host_empty(tensor.shape, like=tensor) for tensor in tensors]
        if keep:
            self.link.drain()
            for host, old in zip(hosts, self.tensors, strict=True):
                shared = min(host.shape[2], old.shape[2])
                host[:, :, :shared] = old[:, :, :shared]
        self.tensors = hosts

    def _put_all(self, tensors: Sequence[Tensor], hosts: Sequence[Tensor], used: Sequence[Tensor]) -> None:
        for tensor, host, count in zip(tensors, hosts, used, strict=True):
            for block in blocks(count, by_head=self.device.type == "cuda"):
                self.link.store(tensor[block], host[block])

    def _put_entries(self, staged: Sequence[tuple[Tensor, Tensor, tuple[Tensor, ...]]]) -> None:
        for entries, host, where in staged:
            arrived = host_empty(entries.shape, like=entries)
            self.link.store(entries, arrived)
            host[where] = arrived

    def __deepcopy__(self, memo: dict[int, Any]) -> HostShelf:
        copy = HostShelf(deepcopy(self.link, memo))
        pinned = self.device.type == "cuda"
        copy.tensors = [torch.empty_like(host, pin_memory=pinned).copy_(host) for host in self.tensors]
        copy.used, copy.device = deepcopy(self.used), self.device
        return copy
