"""Disk: all keys and values in files, read layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvfrontier.strategies import strategy
from kvfrontier.strategies._tiered import Tiered

if TYPE_CHECKING:
    from kvfrontier.cache.link import Link
    from kvfrontier.cache.tier import Shelf


@strategy("disk")
class Disk(Tiered):
    """Keep every token in a file for each layer; read a layer's before its attention, write the new ones after it.

    Paper: Sheng et al. 2023 (FlexGen), arXiv:2303.06865, with its whole cache on disk; buffered against direct
    transfers as in DUAL-BLADE (arXiv:2604.26557), which writes to the raw device where this uses files.
    The files lie in the system's folder for temporary files (TMPDIR: `kv_tier` says on which file system), have no name
    there and end with the process. `io: buffered` goes through the page cache, which is RAM while there is enough of
    it; `io: direct` goes past it in whole 4,096 B blocks, and is `unsupported` where the file system refuses.
    `fetched_bytes` and `stored_bytes` are what is read and written: for `direct` with the rest of the blocks.
    A layer whose allocation changes size (at a further reading, or beyond what was reserved) is written anew.
    Differs: no block schedule over several batches. Memory holds images of at most two layers at once.
    Phases: end of prefill, every decode step. Needs: transfers.
    """

    io: Annotated[Literal["buffered", "direct"], Field(description="Through the page cache, or past it (O_DIRECT)")] = (
        "buffered"
    )
    store_megabytes_per_s: Annotated[
        float | None, Field(gt=0, description="Emulate a storage of this rate, either way; null: as fast as it is")
    ] = None

    def link(self) -> Link:
        """Storage to memory."""
        from kvfrontier.cache.link import Link

        return Link(None if self.store_megabytes_per_s is None else self.store_megabytes_per_s / 1000)

    def shelf(self, link: Link) -> Shelf:
        """A file."""
        from kvfrontier.cache.file_shelf import FileShelf

        return FileShelf(link, self.io == "direct")

    def memories(self, device_kind: str) -> dict[str, str]:
        """The file system, and how it is reached."""
        from kvfrontier.cache.file_system import temporary_file_system

        rate = self.store_megabytes_per_s
        return {
            "kv_tier": f"files on {temporary_file_system()}, {self.io}",
            "kv_link": "real" if rate is None else f"emulated, {rate:g} MB/s",
        }
