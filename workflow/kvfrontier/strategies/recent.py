"""The newest tokens alone: a control."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfrontier.strategies import strategy
from kvfrontier.strategies._eviction import Eviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@strategy("recent")
class Recent(Eviction):
    """Keep the k newest tokens, no sinks: a sliding window, the control for what attention sinks are worth.

    The window of the comparisons in arXiv:2309.17453. Phases: prefill, every decode step. Needs: nothing.
    """

    def least_tokens(self) -> int:
        """The newest token."""
        return 1

    def recent_tokens(self, capacity: int) -> int:
        """All of them."""
        return capacity

    def scores(self, view: LayerView) -> Tensor:
        """Later is better."""
        return view.cache.used_positions().float()
