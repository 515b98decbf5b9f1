"""Strategies that keep every token and hold each key and value vector in codes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvfrontier.parameters import settings
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.plan.model import ModelSpec


@settings
class VectorCodes(Strategy):
    """A subclass says how one vector is coded. Codes are made once, from the keys as rotated and the values.

    A call's own tokens attend to each other in full precision; later calls read codes. There is no kernel that computes
    on codes: a step reads each layer back into the model's type before it attends, one layer at a time, so the bytes
    are real and the time is that of reading back *and* attending.
    """

    def encode(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """The parts `[n, width]` that `vectors` `[n, head_dim]` are held in."""
        raise TypeError(f"strategy '{self.name}' must define encode(vectors)")

    def decode(self, parts: Sequence[Tensor], head_dim: int, dtype: dtype) -> Tensor:
        """Parts `[..., width]` as vectors `[..., head_dim]` in `dtype`."""
        raise TypeError(f"strategy '{self.name}' must define decode(parts, head_dim, dtype)")

    def vector_bytes(self, head_dim: int) -> int:
        """Bytes of one coded vector (the formula)."""
        raise TypeError(f"strategy '{self.name}' must define vector_bytes(head_dim)")

    def storage(self, layer_idx: int, layers: int) -> LayerCache:
        """A layer of codes."""
        from kvfrontier.cache.coded import VectorCodedLayer

        return VectorCodedLayer(self)

    def kv_bytes(self, spec: ModelSpec, element_bytes: int, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Two vectors a token, head and layer."""
        tokens = spec.layers * spec.kv_heads * self.kept_tokens(prompt_tokens, generated_tokens)
        return tokens * (self.vector_bytes(spec.head_dim) + self.vector_bytes(spec.value_dim))
