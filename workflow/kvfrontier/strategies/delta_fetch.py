"""Delta fetch: InfiniGen's choice, of which only what the last step did not fetch is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from kvfrontier.parameters import PositiveInt
from kvfrontier.strategies import strategy
from kvfrontier.strategies._speculation import Speculation

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.fetching import FetchingPool
    from kvfrontier.cache.view import LayerView
    from kvfrontier.plan.model import ModelSpec


@strategy("delta_fetch")
class DeltaFetch(Speculation):
    """Keep what the last decode step attended to on the device; fetch what this one needs beside it.

    After InfiniGen (arXiv:2406.19707), whose choice it is: outputs equal those of `infinigen` bit for bit, and bytes
    over the link shrink by the share of the choice that stays the same from step to step (`fetch_reuse`). It pays with
    device memory: in every layer as many tokens as the budget allows, and all of a full layer's.
    `lookahead: 2` speculates for the layer after the next one, too, and begins to fetch that; the choice itself is
    still made one layer ahead, and what it lacks is fetched then: the same outputs, more bytes, more time to hide them.
    `page_tokens` p: the pool moves in runs of p tokens that entered one after the other; attention reads, and the
    device keeps, the chosen tokens alone, so that outputs stay the same.
    `layer_compute_s` c adapts to the bandwidth W of the link: of the tokens that are not on the device, a step fetches
    the best c W bytes at most, and those of the last step fill the choice; full layers are not limited. Both rates are
    declared, so that results do not hang on the machine's load, and outputs are no longer `infinigen`'s.
    Phases: prefill (no scores), every decode step. Needs: queries_ahead, transfers.
    """

    lookahead: Annotated[Literal[1, 2], Field(description="Layers ahead that a fetch may begin")] = 1
    page_tokens: Annotated[PositiveInt, Field(description="Tokens that move together")] = 1
    layer_compute_s: Annotated[
        float | None,
        Field(
            gt=0, description="Declared seconds a layer computes, a sequence: no fetch of one takes longer; null: may"
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> DeltaFetch:
        if self.layer_compute_s is not None and self.link_gigabytes_per_s is None:
            raise ValueError("layer_compute_s needs link_gigabytes_per_s: how much a fetch may bring in that time")
        if self.layer_compute_s is not None and (self.lookahead, self.page_tokens) != (1, 1):
            raise ValueError(
                "layer_compute_s limits what is chosen; lookahead 2 and pages bring other tokens beside it"
            )
        return self

    def pool_options(self) -> dict[str, Any]:
        """The last step's tokens stay on the device."""
        return {"keeps": True, "page": self.page_tokens}

    def kv_bytes(self, spec: ModelSpec, element_bytes: int, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """The pool, and once a step was decoded: on the device, each layer's budget and the step's own token."""
        pool = self.kept_tokens(prompt_tokens, generated_tokens) * spec.layers
        device = 0
        if generated_tokens:
            before = self.kept_tokens(prompt_tokens, generated_tokens - 1)
            device = sum(self.most_attended(before, layer_idx) + 1 for layer_idx in range(spec.layers))
        return (pool + device) * spec.kv_bytes_per_token(element_bytes) // spec.layers

    def limited(self, cache: FetchingPool, scores: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """What is on the device may be chosen, and the best of the rest that can come in time."""
        if self.layer_compute_s is None:
            return scores, counts
        import torch

        from kvfrontier.cache.fetching import HELD

        tokens = int(self.layer_compute_s * self.link_gigabytes_per_s * 1e9 / cache.pool[0, :, 0].nbytes + 1e-9)
        tokens = min(max(self.k_min, self.sinks, tokens), cache.slots)
        held = torch.zeros_like(scores, dtype=torch.bool)
        if cache.buffer is not None:
            held = cache.aux[HELD][:, :, : cache.slots] > 0
        least = scores.masked_fill(held, -torch.inf).topk(tokens).values[..., -1:]
        scores = scores.masked_fill(~held & (scores < least), -torch.inf)
        return scores, counts.minimum((scores > -torch.inf).sum(-1).cpu())

    def fetch_ahead(self, view: LayerView) -> None:
        """The next layer's choice; with `lookahead: 2`, what the layer after it will probably choose."""
        super().fetch_ahead(view)
        later = view.layer_idx + 2
        if self.lookahead == 2 and later < view.layers and self._chooses(later):
            with view.timer.part("speculate"):
                slots, counts, _ = self.choose(view, 2)
            view.caches[later].start_early(slots, counts, view.timer)
