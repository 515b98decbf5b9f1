"""SnapKV's score, which its relatives share: what the last queries of a reading attend to, pooled over neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from kvfrontier.parameters import PositiveInt, settings
from kvfrontier.strategies._eviction import Eviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@settings
class WindowEviction(Eviction):
    """Keep the window (the last w tokens read) and, of the older, those with the largest weights from its queries.

    Compresses after each prefill or extension; generated tokens stay until the next one. Score of an older token: its
    softmax weight, mean over the window's queries, pooled over its neighbours among the stored tokens, then reduced
    over the query heads of a KV head. The window has no more than half of the budget: where k < 2 w, w is k // 2.
    An extension of fewer than w tokens is scored by its own queries; the w last tokens stay all the same.
    The window's queries are held between the chunks of a reading, and dropped with its compression.
    """

    window_tokens: Annotated[PositiveInt, Field(description="w: last tokens, which stay and whose queries score")] = 32
    kernel_size: Annotated[PositiveInt, Field(description="Neighbours that pooling spans, odd; 1: no pooling")] = 7
    pooling: Annotated[Literal["max", "avg"], Field(description="How weights of neighbours are pooled")] = "max"
    group_reduce: Annotated[Literal["mean", "max"], Field(description="Over the query heads that share a KV head")] = (
        "mean"
    )

    @field_validator("kernel_size")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"an odd number, so that a token is the middle of its neighbours, not {value}")
        return value

    def last_eviction(self, decoded_tokens: int) -> int:
        """Decode steps evict nothing."""
        return 0

    def recent_tokens(self, capacity: int) -> int:
        """The window."""
        return min(self.window_tokens, capacity // 2)

    def observe(self, view: LayerView) -> None:
        """Note the last queries, where they may be asked for."""
        if view.phase != "decode" and self.budget != 1.0:
            from kvfrontier.cache.window import note_queries

            note_queries(view, self.window_tokens)

    def after_prefill(self, view: LayerView) -> None:
        """Compress; the queries have then done their work."""
        from kvfrontier.cache.window import drop_queries

        super().after_prefill(view)
        drop_queries(view.cache)

    def scores(self, view: LayerView) -> Tensor:
        """Pooled weights from the window `[batch, kv_heads, slots]`."""
        from kvfrontier.cache.window import pool_by_age, window_weights

        positions = view.cache.used_positions()
        weights = window_weights(view, [self.recent_tokens(budget) for budget in self._row_budgets(view)])
        weights = weights.view(*positions.shape[:2], -1, positions.shape[2])  # [batch, kv_heads, group, slots]
        older = (positions >= 0) & (positions < self._oldest_recent(view))
        weights = pool_by_age(weights, positions, older, self.kernel_size, self.pooling)
        return weights.mean(2) if self.group_reduce == "mean" else weights.amax(2)
