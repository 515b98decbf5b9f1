"""Accumulated attention, the score of H2O and of its variants: how it is summed, what it spares, when it evicts."""

from __future__ import annotations

from functools import reduce
from math import log
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvfrontier.parameters import Count, PositiveInt, Share, settings
from kvfrontier.strategies._eviction import Eviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@settings
class Accumulated(Eviction):
    """Score S_j: the softmax weights that key j was given, summed over rows: S <- decay S + a, row by row.

    The newest tokens stay whatever their score: max(k_r, grace, score_delay) of them, so that a token has been seen by
    `grace` later rows and scored by one before it can go. That window and the sinks are inside the budget: where it is
    as large as the budget, recency alone decides.
    `score_delay` D: only rows at least D after a token score it (0: its own row too).
    `group_reduce`: over the query heads of a KV head, of each head's own S; `mean` ranks as `sum` does, `max` keeps one
    sum a query head. The kept set is per KV head: sets per query head would need the keys expanded.
    """

    needs = frozenset({"attention_mass"})

    recent_share: Annotated[Share, Field(description="Share of the budget that is the recent window")] = 0.5
    sinks: Annotated[Count, Field(description="First tokens that always stay (inside the budget)")] = 0
    grace: Annotated[Count, Field(description="Later rows that a token must have been seen by before it can go")] = 0
    decay: Annotated[
        float, Field(gt=0, le=1, description="What a score is multiplied by with each row, before the row is added")
    ] = 1.0
    score_delay: Annotated[Count, Field(description="A token is scored only by rows at least so much later")] = 0
    group_reduce: Annotated[
        Literal["sum", "mean", "max"], Field(description="A KV head's score from those of its query heads")
    ] = "sum"
    decode_evict: Annotated[
        Literal["every", "off", "interval"], Field(description="Decode steps that evict: all, none, every m-th")
    ] = "every"
    evict_interval: Annotated[PositiveInt, Field(description="m of `decode_evict: interval`")] = 16
    scoring: Annotated[
        Literal["lse", "two_pass", "eager"],
        Field(description="How exact column sums are formed: kernel's lse and a pass, two passes, the matrix"),
    ] = "lse"

    def row_weighting(self) -> tuple[float, int]:
        """Decay and delay of the rows."""
        return self.decay, self.score_delay

    def sink_tokens(self) -> int:
        """The sinks."""
        return self.sinks

    def recent_tokens(self, capacity: int) -> int:
        """At least the newest token, and never the sinks' place."""
        window = max(int(capacity * self.recent_share), self.grace, self.score_delay)
        return max(1, min(window, capacity - self.sinks))

    def last_eviction(self, decoded_tokens: int) -> int:
        """The last of so many decode steps that evicted."""
        steps = {"every": 1, "off": decoded_tokens + 1, "interval": self.evict_interval}[self.decode_evict]
        return decoded_tokens - decoded_tokens % steps

    def carried(self, view: LayerView) -> list[float]:
        """What each row's S so far counts after this call's rows."""
        return [self.decay**new for new in view.new_tokens]

    def observe(self, view: LayerView) -> None:
        """Carry S on, and add the column sums of this call's rows."""
        carried = self.carried(view)
        for name, mass in self._sums_to_add(view):
            total = view.cache.auxiliary(name)[:, :, : view.cache.slots]
            if len(set(carried)) > 1:
                total *= total.new_tensor(carried)[:, None, None]
            elif carried[0] != 1.0:
                total *= carried[0]
            total += mass

    def _sums_to_add(self, view: LayerView) -> list[tuple[str, Tensor]]:
        if self.group_reduce != "max":
            return [("mass", view.group_mass)]
        heads = view.attention_mass.unflatten(1, (view.cache.positions.shape[1], -1)).unbind(2)
        return [(f"mass{index}", mass) for index, mass in enumerate(heads)]

    def scores(self, view: LayerView) -> Tensor:
        """S, reduced over the query heads of each KV head."""
        cache, group = view.cache, view.queries.shape[1] // view.cache.positions.shape[1]
        if self.group_reduce != "max":
            mass = cache.aux["mass"][:, :, : cache.slots]
            return mass / group if self.group_reduce == "mean" else mass
        import torch

        return reduce(torch.maximum, [cache.aux[f"mass{head}"][:, :, : cache.slots] for head in range(group)])


@settings
class RowMean(Accumulated):
    """With a choice of S per row: for strategies in which every later row has scored a kept token."""

    score_norm: Annotated[
        Literal["sum", "mean_rows"], Field(description="S, or S per row that scored the token (removes the age bias)")
    ] = "sum"

    def scores(self, view: LayerView) -> Tensor:
        """S, or the weighted mean of the rows that it sums."""
        mass = super().scores(view)
        if self.score_norm == "sum":
            return mass
        rows = view.newest_position() - view.cache.used_positions() + 1 - self.score_delay
        rows = rows.clamp_min(1)  # no row yet: S is 0
        if self.decay < 1:
            rows = (rows * log(self.decay)).expm1() / (self.decay - 1)  # 1 + decay + ... of so many rows
        return mass / rows


@settings
class InChunks(Accumulated):
    """Evicts after each `chunk_tokens` of a prefill or an extension, to the budget of the tokens read so far.

    A share follows the tokens so far, so that the first chunk is not cut to what the whole prompt is worth; a token
    count is the same from the first chunk on. At most budget + chunk tokens are ever held.
    """

    needs = frozenset({"attention_mass", "chunks"})

    chunk_tokens: Annotated[
        PositiveInt, Field(description="Tokens between evictions of a prefill, whatever the engine's own chunks are")
    ] = 128

    def after_chunk(self, view: LayerView) -> None:
        """Keep each row's best tokens."""
        self._compress(view)
