"""StreamingLLM: the first tokens and the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvfrontier.parameters import Count
from kvfrontier.strategies import strategy
from kvfrontier.strategies._eviction import Eviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@strategy("streaming_llm")
class StreamingLLM(Eviction):
    """Keep `num_sinks` first tokens and the most recent ones; no scores, the same set for every head.

    Paper: Xiao et al. 2023, arXiv:2309.17453 (start 4; recent 512 or 2,000 in the authors' code, which is MIT).
    Differs: a step's query still sees the token that this step evicts (the authors evict first), as with every strategy
    here. `positions: original` keeps true positions; the paper's own `rolled` numbers the kept tokens 0, 1, 2 ... The
    kept recent tokens are consecutive, so only the sinks' distance to the query changes: their keys are rotated
    forward by (true - rolled) query position, always from the originals, which equals caching unrotated keys.
    Phases: prefill, every decode step. Needs: nothing.
    """

    num_sinks: Annotated[Count, Field(description="First tokens that always stay (inside the budget)")] = 4
    positions: Annotated[
        Literal["original", "rolled"], Field(description="True positions, or positions within the cache (the paper's)")
    ] = "original"

    def sink_tokens(self) -> int:
        """The sinks."""
        return self.num_sinks

    def least_tokens(self) -> int:
        """The sinks and the newest token."""
        return self.num_sinks + 1

    def requires(self) -> frozenset[str]:
        """Rolled positions re-rotate keys."""
        return frozenset({"rotation"}) if self.positions == "rolled" else frozenset()

    def scores(self, view: LayerView) -> Tensor:
        """Later is better."""
        return view.cache.used_positions().float()

    def before_attention(self, view: LayerView) -> None:
        """Rolled positions: bring the sinks as near to the queries as their place in the cache says."""
        cache, sinks = view.cache, self.num_sinks
        if self.positions == "original" or sinks == 0 or view.phase == "prefill":
            return
        gaps = [seen - int(count) for seen, count in zip(view.seen_tokens, cache.counts[:, 0], strict=True)]
        if not any(gaps):
            return
        # Slots [0, sinks) are the sinks: compression orders by position and eviction in place never touches them.
        gaps, held = cache.positions.new_tensor(gaps), cache.extras
        if "sink_keys" not in held:
            held["sink_keys"], held["is_rolled"] = cache.keys[:, :, :sinks].clone(), gaps < 0
        # A row that has evicted nothing may still be getting its sinks; theirs are the originals.
        as_they_are = ~held["is_rolled"]
        held["sink_keys"][as_they_are] = cache.keys[as_they_are, :, :sinks]
        rolled = held["is_rolled"] = gaps > 0
        cache.keys[rolled, :, :sinks] = view.rotate(held["sink_keys"][rolled], gaps[rolled])
