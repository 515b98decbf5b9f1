"""Anchors: an eviction policy that never evicts tokens which say what may be asked for later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator, model_validator

from kvfrontier.errors import Unsupported
from kvfrontier.parameters import Count, Share
from kvfrontier.strategies import strategy
from kvfrontier.strategies._anchor_rank import NOTES, SPANS, Kind, Row, ranked
from kvfrontier.strategies._eviction import Eviction
from kvfrontier.strategies._named import Named, build
from kvfrontier.strategies._wrapped import Wrapped

if TYPE_CHECKING:
    from kvfrontier.cache.view import LayerView
    from kvfrontier.plan.model import ModelSpec


@strategy("anchors")
class Anchors(Wrapped):
    """Protect anchors inside the budget of `policy`, which chooses the rest as it always does.

    Semantic anchor protection, with its controls (no paper; what protection alone is worth: compare arXiv:2605.18053).
    Of k tokens a head, at most `anchor_share` k are anchors: the kinds of `protect` one after the other, each in its
    own order, until the room is used up. `policy` divides what they leave: its recent window is what it would be for
    a budget of k - |anchors|. All heads and layers protect the same tokens, as far as they still hold them; the total
    is that of `policy`, exactly.
    Kinds: `sinks` (first tokens); `surprisal` (top share of -log p(token | before)); `numerals` (pieces with a digit);
    `rare_tokens` (top share by rarity in the row itself); `system_prompt`, `early_turns` (what a chat begins with);
    controls: `random` (all the room), `boundary` (all the room, from both ends), `oracle_span` (the fact's own tokens:
    cheating, the upper bound). Surprisal, numerals, rare and random tokens grow to whole words and neighbours.
    Anchors are chosen when a prefill or an extension ends, anew over all tokens so far; an earlier anchor that a later
    turn outranks is an ordinary token again. Where surprisal is wanted the prompt is read in chunks of at most 256
    tokens and its last token by itself, so that the vocabulary's logits are never held for more; a policy that evicts
    while it reads cannot know it (`unsupported`). Which workload tells turns and the oracle: see `cache/notes.py`.
    Phases and needs: those of `policy`, and notes on tokens.
    """

    policy: Annotated[Named, Field(description="An eviction strategy: name, or mapping with parameters")] = "h2o"
    protect: Annotated[
        tuple[Kind, ...], Field(min_length=1, description="Kinds of anchors, in the order in which they get the room")
    ] = ("sinks", "numerals", "surprisal")
    anchor_share: Annotated[Share, Field(description="Share of the budget that anchors may take")] = 0.25
    sinks: Annotated[Count, Field(description="First tokens that `sinks` means")] = 4
    early_turns: Annotated[Count, Field(description="First turns that `early_turns` means")] = 2
    top_share: Annotated[
        Share, Field(description="Share of the tokens that are anchors by surprisal, and by rarity")
    ] = 0.05
    neighbours: Annotated[Count, Field(description="Tokens before and after a word that stay with it")] = 1
    whole_words: Annotated[bool, Field(description="Grow an anchor to its whole word")] = True
    seed: Annotated[Count, Field(description="Another number, other random anchors")] = 0

    @field_validator("protect")
    @classmethod
    def _each_once(cls, value: tuple[Kind, ...]) -> tuple[Kind, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"each kind once, not {', '.join(value)}")
        return value

    @model_validator(mode="after")
    def _is_a_policy(self) -> Anchors:
        inner = build(self.policy)
        if not isinstance(inner, Eviction) or isinstance(inner, Wrapped):
            raise ValueError(f"policy takes a plain eviction strategy; '{self.policy}' is none")
        if inner.budget_ref != "prompt":
            raise ValueError(f"the parameters of {inner.name} without its budget_ref, which stands beside it")
        _ = self.inner  # raises where it does not take the budget
        return self

    @property
    def inner(self) -> Eviction:
        """The policy, with this budget."""
        return build(self.policy, budget=self.budget, budget_ref=self.budget_ref)

    def requires(self) -> frozenset[str]:
        """What the policy requires, and the notes that the kinds need, unless nothing is ever evicted."""
        if self.budget == 1.0:
            return self.inner.requires()
        words = {"words"} if self.whole_words and SPANS & set(self.protect) else set()
        return self.inner.requires() | words | {NOTES[kind] for kind in self.protect if kind in NOTES}

    def check(self, spec: ModelSpec) -> None:
        """Raise Unsupported for policies that anchors would make wrong, or that evict before surprisal is known."""
        self.inner.check(spec)
        if "rotation" in self.inner.requires():
            raise Unsupported(f"'{self.policy}' counts positions within the cache, among which anchors leave gaps")
        if self.chunk_tokens is not None and "surprisal" in self.protect:
            raise Unsupported(f"'{self.policy}' evicts while it reads, when surprisal is not known yet")

    def room(self, capacity: int) -> int:
        """How many of k = `capacity` tokens may be anchors: the policy's least must fit beside them."""
        return max(0, min(int(self.anchor_share * capacity), capacity - self.inner.least_tokens()))

    def recent_tokens(self, capacity: int) -> int:
        """Newest tokens that stay in any case: those of a policy whose anchors take all their room."""
        return self.inner.recent_tokens(capacity - self.room(capacity))

    def after_chunk(self, view: LayerView) -> None:
        """Mark the anchors, then as `policy` says."""
        self._mark(view)
        self.inner.after_chunk(view)

    def after_prefill(self, view: LayerView) -> None:
        """Mark the anchors, then as `policy` says."""
        self._mark(view)
        self.inner.after_prefill(view)

    def after_decode(self, view: LayerView) -> None:
        """As `policy` says; marks stay where they are."""
        if "anchors" in view.cache.extras and "budgets" not in view.shared:
            budgets = self._row_budgets(view)
            taken = view.cache.extras["anchors"].tolist()
            view.shared["budgets"] = [k - anchors for k, anchors in zip(budgets, taken, strict=True)]
        self.inner.after_decode(view)

    def _mark(self, view: LayerView) -> None:
        """Mark this layer's anchors, and leave the policy, for its own window, what they do not take."""
        import torch

        if self.budget == 1.0:
            return
        cache = view.cache
        if "anchor_ranks" not in view.shared:
            self._rank(view)
        room = []
        for k, rest in zip(self._layer_budgets(view), view.shared["budgets"], strict=True):
            protected = self.inner.sink_tokens() + max(1, self.inner.recent_tokens(rest))
            room.append(max(0, min(self.room(k), k - protected)))
        ranks = view.shared["anchor_ranks"]
        positions = cache.used_positions().long()
        found = ranks.gather(1, positions.clamp(min=0).flatten(1)).view(positions.shape)
        marks = (found < positions.new_tensor(room)[:, None, None]) & (positions >= 0)
        cache.aux["anchors"] = torch.zeros(cache.positions.shape, dtype=torch.bool, device=positions.device)
        cache.aux["anchors"][:, :, : cache.slots] = marks
        cache.extras["anchors"] = view.shared["anchors"].clone()

    def _rank(self, view: LayerView) -> None:
        """Of each row: the rank of every position, how many are anchors, and the budget that is left beside them."""
        import torch

        budgets = self._row_budgets(view)
        ranks = torch.full((len(budgets), max(view.seen_tokens)), torch.iinfo(torch.long).max)
        taken = []
        for row, (k, seen) in enumerate(zip(budgets, view.seen_tokens, strict=True)):
            notes = view.notes[row] if view.notes else {}
            order = ranked(Row(seen, notes, str(view.row_seeds[row])), self)
            ranks[row, order] = torch.arange(len(order))
            taken.append(min(self.room(k), len(order)))
        device = view.cache.positions.device
        view.shared["anchor_ranks"] = ranks.to(device)
        view.shared["anchors"] = torch.tensor(taken, dtype=torch.int32, device=device)
        view.shared["budgets"] = [k - anchors for k, anchors in zip(budgets, taken, strict=True)]
