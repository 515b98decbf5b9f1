"""TOVA: a token stays while the newest one attends to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfrontier.strategies import strategy
from kvfrontier.strategies._eviction import Eviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@strategy("tova")
class TOVA(Eviction):
    """Keep the k tokens with the largest weights from the newest query, averaged over all heads; one set a layer.

    Paper: Oren et al. 2024, arXiv:2401.06104; no window, no sinks, no state.
    Differs: the newest token always stays (in the paper it could be dropped in principle); a prompt is evaluated whole
    and compressed once by its last query, as the authors do too; ties keep the older token.
    Phases: prefill, every decode step. Needs: the last query at prefill, decode_mass (the weights of a decode step).
    """

    def requires(self) -> frozenset[str]:
        """Weights, unless nothing is ever evicted."""
        return frozenset() if self.budget == 1.0 else frozenset({"decode_mass"})

    def recent_tokens(self, capacity: int) -> int:
        """The newest token."""
        return 1

    def observe(self, view: LayerView) -> None:
        """Note the last query of a prompt."""
        if view.phase != "decode" and self.budget != 1.0:
            from kvfrontier.cache.window import note_queries

            note_queries(view, 1)

    def after_prefill(self, view: LayerView) -> None:
        """Compress; the query has then done its work."""
        from kvfrontier.cache.window import drop_queries

        super().after_prefill(view)
        drop_queries(view.cache)

    def scores(self, view: LayerView) -> Tensor:
        """The newest query's weights, the same for every head."""
        from kvfrontier.cache.window import window_weights

        # All heads hold the same tokens in the same slots, since every step treats them alike.
        weights = view.attention_mass if view.phase == "decode" else window_weights(view, [1] * len(view.seen_tokens))
        return weights.mean(1, keepdim=True).expand(-1, view.cache.keys.shape[1], -1)
