"""Strategies that keep every token in another memory than the device's, and bring a layer's when its turn comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvfrontier.parameters import settings
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.cache.link import Link
    from kvfrontier.cache.tier import Shelf


def host_memories(device_kind: str, gigabytes_per_s: float | None) -> dict[str, str]:
    """`Strategy.memories` of tokens in host memory, which is the device's own on a CPU; None: a real link."""
    place = "host memory: the same RAM as the device's" if device_kind == "cpu" else "pinned host memory"
    return {"kv_tier": place, "kv_link": "real" if gigabytes_per_s is None else f"emulated, {gigabytes_per_s:g} GB/s"}


@settings
class Tiered(Strategy):
    """A subclass says where a layer's tensors lie, and over which link they come.

    The layers of a batch share one link, which copies in the order it is asked. A tier can lie under any storage: a
    `stack` moves codes.
    """

    needs = frozenset({"transfers"})

    prefetch: Annotated[
        Literal["layer", "off"],
        Field(description="layer: the next layer is fetched while one computes; off: each waits for its own tokens"),
    ] = "layer"

    def exact(self) -> Literal["", "readings", "always"]:
        """Every token comes back as it was."""
        return "always"

    def link(self) -> Link:
        """The link of a new batch."""
        raise TypeError(f"strategy '{self.name}' must define link()")

    def shelf(self, link: Link) -> Shelf:
        """Where one layer's tensors will lie."""
        raise TypeError(f"strategy '{self.name}' must define shelf(link)")

    def over(self, layers: list[LayerCache]) -> list[LayerCache]:
        """These layers, with their tokens in this tier between calls."""
        from kvfrontier.cache.tier import TierLayer

        link = self.link()
        return [TierLayer(layer, self.shelf(link), self.prefetch == "layer") for layer in layers]

    def storages(self, layers: int) -> list[LayerCache]:
        """Plain layers in this tier."""
        return self.over(super().storages(layers))
