"""Offload: all keys and values in host memory, brought to the device layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvfrontier.strategies import strategy
from kvfrontier.strategies._tiered import Tiered, host_memories

if TYPE_CHECKING:
    from kvfrontier.cache.link import Link
    from kvfrontier.cache.tier import Shelf


@strategy("offload")
class Offload(Tiered):
    """Keep every token in host memory; fetch a layer's before its attention, store the new ones after it.

    Paper: Sheng et al. 2023 (FlexGen), arXiv:2303.06865, with its whole cache on the CPU. A decode step fetches all
    that is held and stores one token; a prefill stores all. `prefetch: layer` overlaps as FlexGen does: while a layer
    computes, the next one's tokens come and the last one's go. At most two layers are on the device at once, between
    calls and chunks none.
    Differs: no block schedule over several batches, and the host computes no attention. `fetched_bytes` and
    `stored_bytes` are counted at the copies. On a CPU both memories are RAM, and a real link costs what RAM costs:
    `link_gigabytes_per_s` sleeps until a link of that rate would be done. The row says both (`kv_tier`, `kv_link`).
    Phases: end of prefill, every decode step. Needs: transfers.
    """

    link_gigabytes_per_s: Annotated[
        float | None, Field(gt=0, description="Emulate a link of this rate, one copy at a time; null: as fast as it is")
    ] = None

    def link(self) -> Link:
        """Host to device."""
        from kvfrontier.cache.link import Link

        return Link(self.link_gigabytes_per_s)

    def shelf(self, link: Link) -> Shelf:
        """Host tensors."""
        from kvfrontier.cache.host_shelf import HostShelf

        return HostShelf(link)

    def memories(self, device_kind: str) -> dict[str, str]:
        """Host memory."""
        return host_memories(device_kind, self.link_gigabytes_per_s)
