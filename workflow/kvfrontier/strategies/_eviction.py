"""Eviction: what all strategies share that keep the tokens with the largest scores and lose the others for good."""

from __future__ import annotations

from sys import maxsize
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvfrontier.parameters import Budget, settings, tokens_of
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@settings
class Eviction(Strategy):
    """Keep the tokens with the largest scores: a subclass says what the score is.

    k = max(least, ceil(budget * n)) tokens a KV head, never more than there are; sinks and recent tokens count in k.
    Budget 1.0 is the whole cache, generated tokens too.
    n = tokens read by prefill and extensions (`budget_ref: prompt`), or all tokens so far (`total`).
    """

    budget: Annotated[Budget, Field(description="Kept share of the tokens in (0, 1], or a token count per KV head")] = (
        0.2
    )
    budget_ref: Annotated[
        Literal["prompt", "total"], Field(description="What a share refers to: tokens read, or read and generated")
    ] = "prompt"

    def scores(self, view: LayerView) -> Tensor:
        """What each slot is worth `[batch, kv_heads, slots]`, higher = keep; unused slots may hold anything."""
        raise TypeError(f"strategy '{self.name}' must define scores(view)")

    def sink_tokens(self) -> int:
        """First positions of the sequence that are never evicted."""
        return 0

    def recent_tokens(self, capacity: int) -> int:
        """Newest tokens that are never evicted, out of k = `capacity` (mean over layers)."""
        return 0

    def least_tokens(self) -> int:
        """The smallest budget that makes sense: the sinks, one recent token and one chosen by score."""
        return self.sink_tokens() + 2

    def last_eviction(self, decoded_tokens: int) -> int:
        """The last decode step, of so many, that evicted."""
        return decoded_tokens

    def evicts_while_decoding(self) -> bool:
        """Whether any decode step evicts."""
        return self.budget != 1.0 and self.last_eviction(maxsize) > 0

    def token_budget(self, tokens: int) -> int:
        """k for n = `tokens`: what the budget allows, at least `least_tokens`. May exceed n; budget 1.0 is no limit."""
        if self.budget == 1.0:
            return maxsize
        return max(self.least_tokens(), tokens_of(self.budget, tokens))

    def layer_budgets(self, tokens: int, layers: int) -> Sequence[int]:
        """k of each layer for n = `tokens`; a subclass may differ by layer, but the mean is `token_budget`."""
        return [self.token_budget(tokens)] * layers

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """min(what there is, k) at the last eviction, and every token since."""
        evicted, reference = self._at_last_eviction(prompt_tokens, generated_tokens)
        return min(prompt_tokens + evicted, self.token_budget(reference)) + generated_tokens - evicted

    def kept_by_layer(self, layers: int, prompt_tokens: int, generated_tokens: int = 0) -> list[int]:
        """The same of each layer."""
        evicted, reference = self._at_last_eviction(prompt_tokens, generated_tokens)
        budgets = self.layer_budgets(reference, layers)
        return [min(prompt_tokens + evicted, budget) + generated_tokens - evicted for budget in budgets]

    def _at_last_eviction(self, prompt_tokens: int, generated_tokens: int) -> tuple[int, int]:
        """Decode steps up to the last eviction, and the tokens that a share referred to."""
        evicted = self.last_eviction(generated_tokens)
        return evicted, prompt_tokens + (evicted if self.budget_ref == "total" else 0)

    def after_prefill(self, view: LayerView) -> None:
        """Keep each row's best tokens."""
        self._compress(view)

    def after_decode(self, view: LayerView) -> None:
        """Evict down to the budget, where this step evicts at all."""
        if self.last_eviction(view.decoded_tokens) != view.decoded_tokens:
            return
        import torch

        budgets = self._layer_budgets(view)
        if view.cache.slots <= min(budgets):
            return
        excess = view.cache.counts - torch.tensor(budgets)[:, None]
        most = int(excess.max())
        if most > 1:
            self._compress(view)
        elif most == 1:
            scores = self._protected_scores(view)
            least = scores.min(-1, keepdim=True).values
            # Equal scores: the youngest goes, as in after_prefill.
            position = view.cache.used_positions().masked_fill(scores > least, -1)
            view.cache.drop(position.argmax(-1), None if bool((excess == 1).all()) else excess == 1)

    def _row_budgets(self, view: LayerView) -> list[int]:
        """k of each row, mean over layers."""
        if "budgets" not in view.shared:
            view.shared["budgets"] = [self.token_budget(count) for count in self._reference_tokens(view)]
        return view.shared["budgets"]

    def _layer_budgets(self, view: LayerView) -> Sequence[int]:
        """k of each row in this layer."""
        if "layer_budgets" not in view.shared:
            rows = [self.layer_budgets(count, view.layers) for count in self._reference_tokens(view)]
            view.shared["layer_budgets"] = list(zip(*rows, strict=True))
        return view.shared["layer_budgets"][view.layer_idx]

    def _reference_tokens(self, view: LayerView) -> list[int]:
        return view.read_tokens if self.budget_ref == "prompt" else view.seen_tokens

    def _oldest_recent(self, view: LayerView) -> Tensor:
        """First position of each row's recent window `[batch, 1, 1]`."""
        if "oldest_recent" not in view.shared:
            recent = [self.recent_tokens(budget) for budget in self._row_budgets(view)]
            recent = view.cache.positions.new_tensor(recent)[:, None, None]
            view.shared["oldest_recent"] = view.newest_position() - recent + 1
        return view.shared["oldest_recent"]

    def _protected_scores(self, view: LayerView) -> Tensor:
        """Scores with +inf on sinks, recent tokens and anchors (`anchors.py` marks them), and on unused slots."""
        positions = view.cache.used_positions()
        scores = self.scores(view).float()
        protected = positions >= self._oldest_recent(view)
        if "anchors" in view.cache.aux:
            protected |= view.cache.aux["anchors"][:, :, : view.cache.slots]
        if self.sink_tokens() or not view.cache.uniform:
            protected |= positions < self.sink_tokens()  # unused slots have position -1
        return scores.masked_fill(protected, float("inf"))

    def _compress(self, view: LayerView) -> None:
        """Keep the `min(count, k)` best of each head."""
        import torch

        from kvfrontier.cache.best import keep_best

        kept = torch.minimum(view.cache.counts, torch.tensor(self._layer_budgets(view))[:, None])
        if bool((kept != view.cache.counts).any()):
            keep_best(view.cache, self._protected_scores(view), kept)
