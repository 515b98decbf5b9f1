"""Random tokens beside the protected ones: the control that every score must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal
from zlib import crc32

from pydantic import Field

from kvfrontier.parameters import Count, Share
from kvfrontier.strategies import strategy
from kvfrontier.strategies._eviction import Eviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView

_LOW = {shift: (1 << (64 - shift)) - 1 for shift in (30, 27, 31)}  # int64 shifts drag the sign along


@strategy("random")
class Random(Eviction):
    """Keep sinks and recent tokens as the policy under test does, and of the others a random choice.

    Give it that policy's protected set: `sinks` and `recent_share` (h2o), `window_tokens` (snapkv), `sinks` alone with
    `recent_share: 0`. A score that does not beat this control says nothing (compare arXiv:2605.18053).
    Each token has one random rank per layer and KV head, drawn from `seed`, the row's prefill tokens, layer, head and
    position: the same prompt keeps the same tokens in every batch, chunk size and copy; others are independent.
    Phases: prefill, decode. Needs: nothing.
    """

    seed: Annotated[Count, Field(description="Another number, another choice")] = 0
    sinks: Annotated[Count, Field(description="First tokens that always stay (inside the budget)")] = 0
    recent_share: Annotated[Share, Field(description="Share of the budget that is the recent window")] = 0.5
    window_tokens: Annotated[
        Count | None, Field(description="Recent window as a count instead, at most half of the budget")
    ] = None
    decode_evict: Annotated[Literal["every", "off"], Field(description="Decode steps that evict")] = "every"

    def sink_tokens(self) -> int:
        """The sinks."""
        return self.sinks

    def recent_tokens(self, capacity: int) -> int:
        """The recent window, at least the newest token, and never the sinks' place."""
        share = int(capacity * self.recent_share)
        wanted = share if self.window_tokens is None else min(self.window_tokens, capacity // 2)
        return max(1, min(wanted, capacity - self.sinks))

    def last_eviction(self, decoded_tokens: int) -> int:
        """The last decode step, or none."""
        return decoded_tokens if self.decode_evict == "every" else 0

    def scores(self, view: LayerView) -> Tensor:
        """A number in [0, 1) that is the token's own `[batch, kv_heads, slots]`."""
        positions = view.cache.used_positions().long()
        heads = range(positions.shape[1])
        keys = [
            [crc32(f"{self.seed} {row} {view.layer_idx} {head}".encode()) for head in heads] for row in view.row_seeds
        ]
        mixed = positions + (positions.new_tensor(keys)[..., None] << 31)
        for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):  # the finaliser of SplitMix64
            mixed = (mixed ^ (mixed >> shift & _LOW[shift])) * factor
        mixed = mixed ^ (mixed >> 31 & _LOW[31])
        return (mixed & 0xFFFFFF).float() / 0x1000000
