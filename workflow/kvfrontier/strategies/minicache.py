"""MiniCache: in the upper half of the layers, two neighbours share the directions of their keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvfrontier.errors import Unsupported
from kvfrontier.parameters import Share, tokens_of
from kvfrontier.strategies import strategy
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.plan.model import ModelSpec


@strategy("minicache")
class MiniCache(Strategy):
    """Keep every token; for two neighbouring layers one direction and two lengths, of keys and of values.

    Paper: Liu et al. 2024, arXiv:2405.14366 (pairs from the middle layer on, t = 0.6, gamma = 5 %). A pair's vectors of
    one token and KV head are split in length and direction, the directions are interpolated along the sphere (SLERP, a
    share t of the way to the deeper layer's), and the share gamma of tokens with the largest angle stays as it is in
    both layers. At gamma 0.05 a pair takes 0.53 of two layers (head_dim 128), all layers together 0.77.
    Merging is at the end of a prefill and of every extension, after their attention; tokens generated since then stay
    as they are, in both layers, until the next one. An odd layer at the end is left alone. Rotated keys are merged.
    Differs: the tokens apart are chosen by count, for each head, and for keys and values by themselves; no quantisation
    beside it. Nothing can be evicted: the layers of a pair would keep different tokens. A step reads each layer back
    before it attends.
    Phases: end of prefill and of extensions. Needs: nothing.
    """

    storage_drops = False

    t: Annotated[
        Share, Field(description="How far a shared direction is from the shallower layer's to the deeper's")
    ] = 0.6
    gamma: Annotated[Share, Field(description="Share of tokens, those with the largest angles, that is not merged")] = (
        0.05
    )
    start_depth: Annotated[
        float, Field(ge=0, lt=1, description="Depth, as a share of the layers, from which on layers are paired")
    ] = 0.5

    def pairs(self, layers: int) -> range:
        """The first layer of each pair."""
        return range(int(self.start_depth * layers + 1e-9), layers - 1, 2)

    def check(self, spec: ModelSpec) -> None:
        """Raise Unsupported where no two layers are left to pair."""
        layers = spec.open_part().layers
        if layers and not self.pairs(layers):
            raise Unsupported(f"{layers} layers have no pair from a depth of {self.start_depth:g} on")

    def storages(self, layers: int) -> list[LayerCache]:
        """Plain layers, and the second of each pair with the first."""
        from kvfrontier.cache.merged import PairedLayer

        made = super().storages(layers)
        for first in self.pairs(layers):
            made[first] = PairedLayer(None, self.t, self.gamma)
            made[first + 1] = PairedLayer(made[first], self.t, self.gamma)
        return made

    def kv_bytes(self, spec: ModelSpec, element_bytes: int, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Of a pair, merged tokens: a direction and two lengths; all others as in the full cache."""
        layer = replace(spec, layers=1).kv_bytes_per_token(element_bytes)
        lengths = 2 * 2 * spec.kv_heads * element_bytes
        merged = len(self.pairs(spec.layers)) * (prompt_tokens - tokens_of(self.gamma, prompt_tokens))
        return super().kv_bytes(spec, element_bytes, prompt_tokens, generated_tokens) - merged * (layer - lengths)
