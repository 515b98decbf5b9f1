"""What a strategy is: settings, a formula for what it keeps, and what it does to one layer's cache.

A strategy's fields are read when the plan is made, often where torch is not wanted: import torch inside methods.
A strategy holds no state; what belongs to a sequence lives in the layer's cache.
"""

from __future__ import annotations

from math import ceil
from sys import maxsize
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from kvfrontier.parameters import Budget, settings

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@settings
class Strategy:
    """Base of all strategies; subclasses are plugins and add fields. Hooks get one layer at a time."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    """What attention must hand over: `attention_mass` (column sums of the softmax, per query head)."""
    scoring: ClassVar[str] = "lse"
    """How `attention_mass` is computed; a strategy may make it a field."""
    chunk_tokens: ClassVar[int | None] = None
    """Prefills and extensions are read so many tokens at a time, with `after_chunk` between, whatever chunks the engine
    is set to; None: the engine reads as it likes, which changes no result. Made a field, with `chunks` in `needs`."""
    isolated_chunks: ClassVar[bool] = False
    """True: a prefill's chunk attends to itself alone. Extensions and decode steps see all that is kept."""

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Tokens held per KV head after a prefill of `prompt_tokens` and `generated_tokens` decode steps (the formula).

        After several turns, with the tokens read so far and the decode steps since the last reading: an upper bound.
        """
        return prompt_tokens + generated_tokens

    def peak_tokens(self, prompt_tokens: int, generated_tokens: int) -> int:
        """Slots needed at once: a decode step's token is stored before the strategy evicts."""
        during = (self.kept_tokens(prompt_tokens, step) + 1 for step in range(generated_tokens))
        return max(self.kept_tokens(prompt_tokens, 0), *during, 0)

    def requires(self) -> frozenset[str]:
        """`needs`, for these settings."""
        return self.needs

    def row_weighting(self) -> tuple[float, int]:
        """(decay, delay) of the rows in `attention_mass`, for these settings.

        A row counts decay^(rows after it in the call), and only for tokens that are at least `delay` older than it.
        """
        return 1.0, 0

    def before_attention(self, view: LayerView) -> None:
        """Act on one layer when its new tokens are stored and attention has not run (queries are known)."""

    def observe(self, view: LayerView) -> None:
        """Take note of one call's attention: every chunk of a prefill or an extension, and every decode step."""

    def after_chunk(self, view: LayerView) -> None:
        """Act on one layer after the attention of a chunk of `chunk_tokens` that is not the last."""

    def after_prefill(self, view: LayerView) -> None:
        """Act on one layer after the attention of a prefill's or an extension's last chunk."""

    def after_decode(self, view: LayerView) -> None:
        """Act on one layer after the attention of a decode step."""


@settings
class Eviction(Strategy):
    """Keep the tokens with the largest scores: a subclass says what the score is.

    k = max(least, ceil(budget * n)) tokens a KV head, never more than there are; sinks and recent tokens count in k.
    Budget 1.0 is the whole cache, generated tokens too.
    n = tokens read by prefill and extensions (`budget_ref: prompt`), or all tokens so far (`total`).
    """

    budget: Annotated[
        Budget | None, Field(description="Kept share of the tokens in (0, 1], or a token count per KV head")
    ] = 0.2
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
        """Newest tokens that are never evicted, out of `capacity` kept ones."""
        return 0

    def least_tokens(self) -> int:
        """The smallest budget that makes sense: the sinks, one recent token and one chosen by score."""
        return self.sink_tokens() + 2

    def last_eviction(self, decoded_tokens: int) -> int:
        """The last decode step, of so many, that evicted."""
        return decoded_tokens

    def token_budget(self, tokens: int) -> int:
        """k for n = `tokens`: what the budget allows, at least `least_tokens`. May exceed n; budget 1.0 is no limit."""
        if self.budget == 1.0:
            return maxsize
        if isinstance(self.budget, int):
            return max(self.least_tokens(), self.budget)
        # 1e-9: 0.07 * 100 is 7.000000000000001 in binary and must not become 8 tokens.
        return max(self.least_tokens(), ceil(self.budget * tokens - 1e-9))

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """min(what there is, k) at the last eviction, and every token since."""
        evicted = self.last_eviction(generated_tokens)
        reference = prompt_tokens + (evicted if self.budget_ref == "total" else 0)
        return min(prompt_tokens + evicted, self.token_budget(reference)) + generated_tokens - evicted

    def after_prefill(self, view: LayerView) -> None:
        """Keep each row's best tokens."""
        self._compress(view)

    def after_decode(self, view: LayerView) -> None:
        """Evict down to the budget, where this step evicts at all."""
        if self.last_eviction(view.decoded_tokens) != view.decoded_tokens:
            return
        import torch

        budgets = self._row_budgets(view)
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
        if "budgets" not in view.shared:
            tokens = view.read_tokens if self.budget_ref == "prompt" else view.seen_tokens
            view.shared["budgets"] = [self.token_budget(count) for count in tokens]
        return view.shared["budgets"]

    def _protected_scores(self, view: LayerView) -> Tensor:
        """Scores with +inf on sinks and recent tokens, and +inf too on unused slots."""
        positions = view.cache.used_positions()
        scores = self.scores(view).float()
        if "oldest_recent" not in view.shared:
            recent = positions.new_tensor([self.recent_tokens(budget) for budget in self._row_budgets(view)])
            view.shared["oldest_recent"] = view.newest_position() - recent[:, None, None] + 1
        protected = positions >= view.shared["oldest_recent"]
        if self.sink_tokens() or not view.cache.uniform:
            protected |= positions < self.sink_tokens()  # unused slots have position -1
        return scores.masked_fill(protected, float("inf"))

    def _compress(self, view: LayerView) -> None:
        """Keep the `min(count, k)` best of each head, in the order of positions; equal scores: the older is kept."""
        import torch

        cache = view.cache
        kept = torch.minimum(cache.counts, torch.tensor(self._row_budgets(view))[:, None])
        if bool((kept == cache.counts).all()):
            return
        positions = cache.used_positions().long()
        unused = positions < 0
        by_age = positions.masked_fill(unused, torch.iinfo(torch.long).max).argsort(-1)
        scores = self._protected_scores(view).masked_fill(unused, float("-inf")).gather(-1, by_age)
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., : int(kept.max())]
        beyond = torch.arange(best.shape[-1], device=best.device) >= kept.to(best.device)[..., None]
        best = best.masked_fill(beyond, scores.shape[-1]).sort(dim=-1).values  # ages, ascending, the cut ones last
        cache.keep(by_age.gather(-1, best.masked_fill(beyond, 0)), kept)
