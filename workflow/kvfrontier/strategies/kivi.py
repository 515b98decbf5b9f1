"""KIVI: keys by channel and values by token, in two or four bits, and a window of recent tokens as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from kvfrontier.cache.group_sizes import SCALE_AND_ZERO_BYTES, grouped_vector_bytes, packed_width
from kvfrontier.parameters import PositiveInt
from kvfrontier.strategies import strategy
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.plan.model import ModelSpec


@strategy("kivi")
class Kivi(Strategy):
    """Keep every token; code keys over G tokens of one channel and values over G channels of one token.

    Paper: Liu et al. 2024, arXiv:2402.02750 (G = `group_size` 32, R = `residual_tokens` 128; the authors' code is MIT).
    Keys wait in full precision until R of them are there and are then coded together; values are coded one token at a
    time once more than R are held. A prefill of n tokens codes the keys of the first n - n mod R and the values of all
    but the last R, after its own attention. Asymmetric, min to max, float16 scale and zero: bits + 32 / G bits an
    element (3.0 at 2 bits and G 32). Rotated keys are coded.
    Differs: rows of a batch group their own tokens, so unequal lengths change nothing; a group without a range is safe;
    a head_dim that G does not divide gets the largest smaller group that does. A step reads each layer back before it
    attends (no kernel computes on codes): the bytes are real, the time includes reading back.
    Phases: end of prefill, decode. Needs: nothing.
    """

    storage_drops = False

    bits: Annotated[Literal[2, 4], Field(description="Bits a code")] = 2
    group_size: Annotated[
        int, Field(ge=2, description="G: tokens (keys) or channels (values) that share a scale and a zero")
    ] = 32
    residual_tokens: Annotated[
        PositiveInt, Field(description="R: newest tokens in full precision, and how many keys are coded at once")
    ] = 128

    @model_validator(mode="after")
    def _check(self) -> Kivi:
        if self.residual_tokens % self.group_size:
            raise ValueError("residual_tokens must be a multiple of group_size: a group is coded whole")
        return self

    def storage(self, layer_idx: int, layers: int) -> LayerCache:
        """Groups of codes and a residual."""
        from kvfrontier.cache.channel_coded import ChannelCodedLayer

        return ChannelCodedLayer(self.bits, self.group_size, self.residual_tokens)

    def kv_bytes(self, spec: ModelSpec, element_bytes: int, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Groups of keys, tokens of values, and what is left of both in full precision."""
        tokens = self.kept_tokens(prompt_tokens, generated_tokens)
        keys_left, values_left = tokens % self.residual_tokens, min(tokens, self.residual_tokens)
        channel = packed_width(self.group_size, self.bits) + SCALE_AND_ZERO_BYTES
        a_head = (
            (tokens - keys_left) // self.group_size * channel * spec.head_dim
            + (tokens - values_left) * grouped_vector_bytes(spec.value_dim, self.bits, self.group_size)
            + (keys_left * spec.head_dim + values_left * spec.value_dim) * element_bytes
        )
        return spec.layers * spec.kv_heads * a_head
