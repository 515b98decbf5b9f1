"""Ada-KV: SnapKV with budgets that differ by head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvfrontier.parameters import Count, Share
from kvfrontier.strategies import strategy
from kvfrontier.strategies._apportion import apportion, spread
from kvfrontier.strategies._window import WindowEviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.cache.view import LayerView


@strategy("ada_kv")
class AdaKV(WindowEviction):
    """SnapKV's scores, but the heads of a layer compete for its tokens; k is the mean over heads.

    Paper: Feng et al. 2024, arXiv:2407.11550. Per layer and sequence, the H (k - w) best older tokens of all H KV heads
    together say how many each head deserves; it gets (1 - floor) times that and floor times the uniform k - w, and
    keeps its own best. The layer's total is that of SnapKV, exactly.
    Memory: a layer whose heads differ lies in one flat buffer, head after head, as the authors have it: reserved is
    what is held and room for the steps to come, as SnapKV's. A decode step reads what is held, by one attention call
    for each head of each row (the authors: one kernel for all). While a layer reads a turn, its tokens lie in tensors
    as wide as its largest head; between the chunks of a turn, those of all layers. Positions (`kv_aux_bytes`) always
    have that width, and in a `stack` codes and what lies in a tier have it too: `kv_reserved_bytes` says so.
    Differs: shares are rounded by the largest remainder; in a later turn a head cannot get more than it still has, and
    what it would is spread over the others; no normalisation of scores across heads; as SnapKV otherwise.
    Phases: prefill; generated tokens are not evicted. Needs: the last w queries.
    """

    even_heads: ClassVar[bool] = False

    floor: Annotated[Share, Field(description="Share of a head's uniform budget that is its own; 1: SnapKV")] = 0.2
    uniform_layers: Annotated[Count, Field(description="First layers whose heads all keep k")] = 0

    def storage(self, layer_idx: int, layers: int) -> LayerCache:
        """Heads of their own length each."""
        from kvfrontier.cache.ragged import RaggedLayer

        return RaggedLayer()

    def after_prefill(self, view: LayerView) -> None:
        """Share the layer's budget out among its heads, and keep the best of each."""
        from kvfrontier.cache.best import keep_best
        from kvfrontier.cache.window import drop_queries

        if view.layer_idx < self.uniform_layers:
            super().after_prefill(view)
            return
        held = view.cache.counts.sum(1).tolist()
        kv_heads = view.cache.counts.shape[1]
        totals = [min(tokens, kv_heads * k) for tokens, k in zip(held, self._layer_budgets(view), strict=True)]
        if totals != held:
            scores = self._protected_scores(view)
            keep_best(view.cache, scores, self._kept_by_head(view, scores, totals))
        drop_queries(view.cache)

    def _kept_by_head(self, view: LayerView, scores: Tensor, totals: list[int]) -> Tensor:
        """How many tokens each head keeps `[batch, kv_heads]`, `totals[row]` in all; scores: +inf where protected."""
        import torch

        used = view.cache.used_positions() >= 0
        protected = (used & scores.isinf()).sum(-1).cpu()
        older = scores.masked_fill(~used | scores.isinf(), float("-inf"))
        kept = protected.clone()
        for row, total in enumerate(totals):
            available = (view.cache.counts[row] - protected[row]).tolist()
            free = total - int(protected[row].sum())
            best = older[row].flatten().sort(descending=True, stable=True).indices[:free]
            deserved = torch.bincount(best // older.shape[2], minlength=len(available)).tolist()
            shares = [
                (1 - self.floor) * own + self.floor * uniform
                for own, uniform in zip(deserved, spread(available, free), strict=True)
            ]
            kept[row] += torch.tensor(apportion(shares, free))
        return kept
