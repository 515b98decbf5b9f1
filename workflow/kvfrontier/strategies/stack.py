"""Stack: an eviction policy over a storage in a tier: what is kept, in which form, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from kvfrontier.errors import Unsupported
from kvfrontier.parameters import Budget
from kvfrontier.strategies import strategy
from kvfrontier.strategies._eviction import Eviction
from kvfrontier.strategies._named import Named, NamedOrNone, build
from kvfrontier.strategies._tiered import Tiered
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.cache.view import LayerView
    from kvfrontier.plan.model import ModelSpec


@strategy("stack")
class Stack(Strategy):
    """Evict, then store, then move: `evict` says which tokens stay, `store` how they are held, `tier` where they lie.

    Always in this order, whatever the parts. A decode step brings a layer's codes from the tier, reads them back,
    attends, evicts, codes what is new, and moves the new codes (and those whose slot eviction filled) to the tier: full
    precision never crosses the link. `store: null` holds tokens as the model made them; `tier: null` on the device.

    Scores come from attention over what is held: full precision for a call's own tokens, read-back codes for older
    ones. At the end of a prefill only survivors are coded; while decoding a survivor's codes move but never change.
    A storage in groups of tokens (kivi) groups the survivors of a prefill's eviction (and an extension's) anew; it
    cannot lose single tokens: an `evict` that evicts while decoding is `unsupported` there (h2o: `decode_evict: off`).
    Phases and needs: those of the parts.
    """

    evict: Annotated[Named, Field(description="An eviction strategy: name, or mapping with parameters")] = "h2o"
    store: Annotated[
        NamedOrNone, Field(description="A strategy with a storage of its own: name or mapping; null: plain tensors")
    ] = "int8"
    tier: Annotated[NamedOrNone, Field(description="offload or disk: name or mapping; null: the device")] = None
    budget: Annotated[
        Budget | None, Field(description="Budget of `evict`; null: its default, or what its other parameters say")
    ] = 0.2

    @model_validator(mode="after")
    def _are_of_their_kinds(self) -> Stack:
        if not isinstance(build(self.evict), Eviction):
            raise ValueError(f"evict takes an eviction strategy; '{self.evict}' is none")
        _ = self._policy  # raises where it does not take the budget
        plain = type(self._form).storage is Strategy.storage
        if self.store is not None and (isinstance(self._form, Stack | Eviction | Tiered) or plain):
            raise ValueError(f"store takes a strategy with a storage of its own; '{self.store}' has none")
        if self.tier is not None and not isinstance(build(self.tier), Tiered):
            raise ValueError(f"tier takes a strategy that moves tokens to another memory; '{self.tier}' does not")
        if self.store is None and self.tier is None:
            raise ValueError(f"neither store nor tier is given: that is '{self.evict}' alone")
        return self

    @property
    def _policy(self) -> Eviction:
        return build(self.evict, self.budget)

    @property
    def _form(self) -> Strategy:
        return build(self.store or "full")

    @property
    def _tier(self) -> Tiered | None:
        return build(self.tier) if self.tier else None

    @property
    def _parts(self) -> tuple[Strategy, ...]:
        return (self._policy, self._form, *filter(None, [self._tier]))

    @property
    def scoring(self) -> str:
        """As `evict` says."""
        return self._policy.scoring

    @property
    def chunk_tokens(self) -> int | None:
        """As `evict` says."""
        return self._policy.chunk_tokens

    @property
    def isolated_chunks(self) -> bool:
        """As `evict` says."""
        return self._policy.isolated_chunks

    @property
    def even_heads(self) -> bool:
        """As `evict` says."""
        return self._policy.even_heads

    @property
    def keeps_at_most(self) -> bool:
        """As `evict` says."""
        return self._policy.keeps_at_most

    @property
    def storage_drops(self) -> bool:
        """As `store` says."""
        return self._form.storage_drops

    def check(self, spec: ModelSpec) -> None:
        """Raise Unsupported where single tokens would have to leave a group, or bytes follow from no formula."""
        for part in self._parts:
            part.check(spec)
        if self._policy.evicts_while_decoding() and not self._form.storage_drops:
            raise Unsupported(
                f"'{self.store}' holds tokens in groups, which cannot lose the single tokens "
                f"that '{self.evict}' evicts while decoding"
            )
        if not (self.even_heads or self._form.storage_drops):
            raise Unsupported(
                f"'{self.store}' holds tokens in groups, and the heads of '{self.evict}' keep as many tokens as each "
                "deserves: no formula says what they take"
            )

    def made_of(self) -> tuple[str, ...]:
        """All parts, and what they are made of."""
        return tuple(name for part in self._parts for name in (part.name, *part.made_of()))

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """As `evict` says."""
        return self._policy.kept_tokens(prompt_tokens, generated_tokens)

    def kept_by_layer(self, layers: int, prompt_tokens: int, generated_tokens: int = 0) -> list[int]:
        """As `evict` says."""
        return self._policy.kept_by_layer(layers, prompt_tokens, generated_tokens)

    def peak_tokens(self, prompt_tokens: int, generated_tokens: int) -> int:
        """As `evict` says."""
        return self._policy.peak_tokens(prompt_tokens, generated_tokens)

    def kv_bytes(self, spec: ModelSpec, element_bytes: int, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """What `store` needs for the tokens that `evict` keeps."""
        by_layer = self.kept_by_layer(spec.layers, prompt_tokens, generated_tokens)
        layer = replace(spec, layers=1)
        return sum(self._form.kv_bytes(layer, element_bytes, tokens) for tokens in by_layer)

    def most_attended(self, tokens: int, layer_idx: int = -1) -> int:
        """As `evict` says."""
        return self._policy.most_attended(tokens, layer_idx)

    def requires(self) -> frozenset[str]:
        """What any part requires."""
        return frozenset().union(*(part.requires() for part in self._parts))

    def memories(self, device_kind: str) -> dict[str, str]:
        """As `tier` says."""
        return self._tier.memories(device_kind) if self._tier else {}

    def row_weighting(self) -> tuple[float, int]:
        """As `evict` says."""
        return self._policy.row_weighting()

    def storages(self, layers: int) -> list[LayerCache]:
        """As `store` says, in `tier`."""
        forms = self._form.storages(layers)
        return self._tier.over(forms) if self._tier else forms

    def before_attention(self, view: LayerView) -> None:
        """As `evict` says."""
        self._policy.before_attention(view)

    def observe(self, view: LayerView) -> None:
        """As `evict` says."""
        self._policy.observe(view)

    def after_chunk(self, view: LayerView) -> None:
        """As `evict` says."""
        self._policy.after_chunk(view)

    def after_prefill(self, view: LayerView) -> None:
        """As `evict` says; what is left is stored when the layer settles."""
        self._policy.after_prefill(view)

    def after_decode(self, view: LayerView) -> None:
        """As `evict` says."""
        self._policy.after_decode(view)
