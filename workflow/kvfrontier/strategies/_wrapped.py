"""A policy around another one: it changes some of what that does, and says of all the rest what that says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvfrontier.parameters import Budget, settings
from kvfrontier.strategies._eviction import Eviction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.cache.view import LayerView
    from kvfrontier.plan.model import ModelSpec


@settings
class Wrapped(Eviction):
    """A subclass defines `inner`. Everything here is as `inner` says; budget and its reference are this one's."""

    budget: Annotated[
        Budget | None,
        Field(
            description="Kept share of the tokens in (0, 1], or a token count per KV head; null: as the policy's own "
            "parameters say, or its default"
        ),
    ] = 0.2

    @property
    def inner(self) -> Eviction:
        """The policy inside, with this budget."""
        raise TypeError(f"strategy '{self.name}' must define inner")

    @property
    def scoring(self) -> str:
        """As inside."""
        return self.inner.scoring

    @property
    def chunk_tokens(self) -> int | None:
        """As inside."""
        return self.inner.chunk_tokens

    @property
    def isolated_chunks(self) -> bool:
        """As inside."""
        return self.inner.isolated_chunks

    @property
    def even_heads(self) -> bool:
        """As inside."""
        return self.inner.even_heads

    @property
    def keeps_at_most(self) -> bool:
        """As inside."""
        return self.inner.keeps_at_most

    @property
    def storage_drops(self) -> bool:
        """As inside."""
        return self.inner.storage_drops

    def check(self, spec: ModelSpec) -> None:
        """As inside."""
        self.inner.check(spec)

    def made_of(self) -> tuple[str, ...]:
        """The policy and its parts."""
        return self.inner.name, *self.inner.made_of()

    def requires(self) -> frozenset[str]:
        """As inside."""
        return self.inner.requires()

    def row_weighting(self) -> tuple[float, int]:
        """As inside."""
        return self.inner.row_weighting()

    def storage(self, layer_idx: int, layers: int) -> LayerCache:
        """As inside."""
        return self.inner.storage(layer_idx, layers)

    def storages(self, layers: int) -> list[LayerCache]:
        """As inside."""
        return self.inner.storages(layers)

    def memories(self, device_kind: str) -> dict[str, str]:
        """As inside."""
        return self.inner.memories(device_kind)

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """As inside."""
        return self.inner.kept_tokens(prompt_tokens, generated_tokens)

    def kept_by_layer(self, layers: int, prompt_tokens: int, generated_tokens: int = 0) -> list[int]:
        """As inside."""
        return self.inner.kept_by_layer(layers, prompt_tokens, generated_tokens)

    def peak_tokens(self, prompt_tokens: int, generated_tokens: int) -> int:
        """As inside."""
        return self.inner.peak_tokens(prompt_tokens, generated_tokens)

    def kv_bytes(self, spec: ModelSpec, element_bytes: int, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """As inside."""
        return self.inner.kv_bytes(spec, element_bytes, prompt_tokens, generated_tokens)

    def most_attended(self, tokens: int, layer_idx: int = -1) -> int:
        """As inside."""
        return self.inner.most_attended(tokens, layer_idx)

    def scores(self, view: LayerView) -> Tensor:
        """As inside."""
        return self.inner.scores(view)

    def sink_tokens(self) -> int:
        """As inside."""
        return self.inner.sink_tokens()

    def recent_tokens(self, capacity: int) -> int:
        """As inside."""
        return self.inner.recent_tokens(capacity)

    def least_tokens(self) -> int:
        """As inside."""
        return self.inner.least_tokens()

    def last_eviction(self, decoded_tokens: int) -> int:
        """As inside."""
        return self.inner.last_eviction(decoded_tokens)

    def evicts_while_decoding(self) -> bool:
        """As inside."""
        return self.inner.evicts_while_decoding()

    def token_budget(self, tokens: int) -> int:
        """As inside."""
        return self.inner.token_budget(tokens)

    def layer_budgets(self, tokens: int, layers: int) -> Sequence[int]:
        """As inside."""
        return self.inner.layer_budgets(tokens, layers)

    def before_attention(self, view: LayerView) -> None:
        """As inside."""
        self.inner.before_attention(view)

    def observe(self, view: LayerView) -> None:
        """As inside."""
        self.inner.observe(view)

    def after_chunk(self, view: LayerView) -> None:
        """As inside."""
        self.inner.after_chunk(view)

    def after_prefill(self, view: LayerView) -> None:
        """As inside."""
        self.inner.after_prefill(view)

    def after_decode(self, view: LayerView) -> None:
        """As inside."""
        self.inner.after_decode(view)
