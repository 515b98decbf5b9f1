"""One layer's tensors in a file without a name: gone with the process, however that ends.

The file is an image of the tensors, each from a block's start on. A layer's image is read into memory when the layer is
brought (on a CPU the tensors are views of it) and what is new is written back from it: single entries as they are, or
whole blocks where reads and writes go past the page cache, which then round outwards.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from fcntl import F_GETFL, F_SETFL, fcntl
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvfrontier.cache.held import between
from kvfrontier.cache.link import Link, Transfer
from kvfrontier.errors import Unsupported

BLOCK = 4096  # what file systems want addresses, offsets and sizes of direct transfers to be multiples of


class NamelessFile:
    """A file in the system's folder for temporary files (TMPDIR); raises Unsupported where `direct` is refused."""

    def __init__(self, direct: bool):
        self.direct = direct
        with tempfile.TemporaryFile(buffering=0) as file:
            self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd)
        if direct:
            self._past_the_page_cache()

    def read(self, image: memoryview, start: int) -> None:
        """Fill `image` from byte `start` on."""
        while image:
            done = os.preadv(self.fd, [image], start)
            if done == 0:
                raise EOFError(f"a file of a layer's tokens ends at byte {start}")
            image, start = image[done:], start + done

    def write(self, image: memoryview, start: int) -> None:
        """Write `image` from byte `start` on."""
        while image:
            done = os.pwritev(self.fd, [image], start)
            image, start = image[done:], start + done

    def _past_the_page_cache(self) -> None:
        try:
            fcntl(self.fd, F_SETFL, fcntl(self.fd, F_GETFL) | os.O_DIRECT)
            self.write(aligned(BLOCK).numpy().data, 0)
        except (AttributeError, OSError) as error:
            folder = tempfile.gettempdir()
            raise Unsupported(f"the file system of {folder} refuses direct transfers (O_DIRECT): {error}") from error


@dataclass(frozen=True)
class Layout:
    """Where each tensor of these shapes lies in the image."""

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]

    def starts(self) -> list[int]:
        """Each tensor's first byte, and where all end."""
        starts = [0]
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = shape.numel() * dtype.itemsize
            starts.append(starts[-1] + size + -size % BLOCK)
        return starts

    def size(self) -> int:
        """Bytes of an image."""
        return self.starts()[-1]

    def entry_bytes(self) -> list[int]:
        """Of one entry of each tensor."""
        return [s[3:].numel() * d.itemsize for s, d in zip(self.shapes, self.dtypes, strict=True)]

    def views(self, image: Tensor) -> list[Tensor]:
        """The tensors in an image."""
        parts = zip(self.starts()[:-1], self.shapes, self.dtypes, strict=True)
        return [image[at : at + s.numel() * d.itemsize].view(d).view(s) for at, s, d in parts]

    def in_use(self, used: Sequence[Tensor]) -> list[Tensor]:
        """Masks of the first `used` `[batch, kv_heads]` entries."""
        return [between(torch.zeros_like(n), n, s[2]) for n, s in zip(used, self.shapes, strict=True)]

    def ranges(self, masks: Sequence[Tensor], whole: int) -> list[tuple[int, int]]:
        """Bytes of the entries in these masks `[batch, kv_heads, entries]`, in ascending ranges of `whole` bytes each
        or a multiple; those that touch are one."""
        found: list[tuple[int, int]] = []
        for start, each, mask in zip(self.starts()[:-1], self.entry_bytes(), masks, strict=True):
            edges = torch.nn.functional.pad(mask.flatten().to(torch.int8), (1, 1)).diff()
            for first, last in zip((edges > 0).nonzero().tolist(), (edges < 0).nonzero().tolist(), strict=True):
                low, high = start + first[0] * each, start + last[0] * each
                low, high = low - low % whole, high + -high % whole
                if found and low <= found[-1][1]:
                    found[-1] = (found[-1][0], high)
                else:
                    found.append((low, high))
        return found


def aligned(size: int, pinned: bool = False) -> Tensor:
    """So many zero bytes of memory, from a block's start on."""
    memory = torch.zeros(size + BLOCK, dtype=torch.uint8, pin_memory=pinned)
    start = -memory.data_ptr() % BLOCK
    return memory[start : start + size]


class FileShelf:
    """The tensors of a layer between calls; memory holds an image of them from `get` to the end of the next `put`."""

    frees_at_once = False

    def __init__(self, link: Link, direct: bool):
        self.link = link
        self.file = NamelessFile(direct)
        self.layout = Layout((), ())
        self.used: list[Tensor] = []
        self.device = torch.device("cpu")
        self._image: Tensor | None = None

    def put(self, tensors: Sequence[Tensor], used: Sequence[Tensor], written: Sequence[Tensor] | None) -> Transfer:
        """As in Shelf."""
        layout = Layout(tuple(tensor.shape for tensor in tensors), tuple(tensor.dtype for tensor in tensors))
        image, self._image = self._image, None
        self.used, self.device = [count.clone() for count in used], tensors[0].device
        if written is None or image is None or layout != self.layout:
            self.link.drain()  # one layer at a time is on its way out
            image, written, self.layout = aligned(layout.size(), tensors[0].is_cuda), None, layout
            os.ftruncate(self.file.fd, layout.size())
        masks = layout.in_use(used) if written is None else written
        return self.link.submit(lambda: self._put(image, list(tensors), layout, masks), self.device)

    def get(self) -> tuple[list[Tensor], Transfer]:
        """As in Shelf."""
        layout, used, on_cuda = self.layout, self.used, self.device.type == "cuda"
        self._image = image = aligned(layout.size(), on_cuda)
        views = layout.views(image)
        tensors = [torch.empty_like(view, device=self.device) for view in views] if on_cuda else views

        def fetch() -> None:
            for low, high in self._ranges(layout, layout.in_use(used)):
                self.link.carry(high - low, partial(self.file.read, _bytes(image, low, high), low))
            for view, tensor in zip(views, tensors, strict=True):
                if tensor is not view:
                    tensor.copy_(view)

        return tensors, self.link.submit(fetch, self.device)

    def host_bytes(self) -> int:
        """As in Shelf; an image is a copy."""
        return 0

    def disk_bytes(self) -> int:
        """As in Shelf."""
        sizes = zip(self.layout.entry_bytes(), self.used, strict=True)
        return sum(each * int(used.sum()) for each, used in sizes)

    def reserved_bytes(self) -> int:
        """As in Shelf."""
        return self.layout.size()

    def _ranges(self, layout: Layout, masks: Sequence[Tensor]) -> list[tuple[int, int]]:
        return layout.ranges(masks, BLOCK if self.file.direct else 1)

    def _put(self, image: Tensor, tensors: list[Tensor], layout: Layout, masks: Sequence[Tensor]) -> None:
        for view, tensor, mask in zip(layout.views(image), tensors, masks, strict=True):
            if view.data_ptr() != tensor.data_ptr():
                where = mask.nonzero(as_tuple=True)
                view[where] = tensor[tuple(index.to(tensor.device) for index in where)].cpu()
        for low, high in self._ranges(layout, masks):
            self.link.carry(high - low, partial(self.file.write, _bytes(image, low, high), low), stored=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> FileShelf:
        copy = FileShelf(deepcopy(self.link, memo), self.file.direct)
        copy.layout, copy.used, copy.device = self.layout, deepcopy(self.used), self.device
        if self.used:
            image = aligned(self.layout.size())
            os.ftruncate(copy.file.fd, self.layout.size())
            for low, high in self._ranges(self.layout, self.layout.in_use(self.used)):
                self.file.read(_bytes(image, low, high), low)
                copy.file.write(_bytes(image, low, high), low)
        return copy


def _bytes(image: Tensor, low: int, high: int) -> memoryview:
    return image[low:high].numpy().data
