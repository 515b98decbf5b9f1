"""INT8: eight bits an element, one scale a token and head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvfrontier.strategies import strategy
from kvfrontier.strategies._vector_codes import VectorCodes

if TYPE_CHECKING:
    from torch import Tensor, dtype


@strategy("int8")
class Int8(VectorCodes):
    """Hold every key and value vector as integers in [-127, 127] and a scale: symmetric, per token and head.

    s = max|x| / 127 (float16), q = round(x / s): no zero point, hence no bias. 8 + 16 / head_dim bits an element (8.125
    at 128). Common practice of serving engines rather than one paper.
    Differs: tokens of a call see each other in full precision; codes are made with the scale as it is stored.
    Phases: end of prefill, every decode step. Needs: nothing.
    """

    def encode(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Codes `[n, head_dim]` int8, scale `[n, 1]` float16."""
        import torch

        from kvfrontier.cache.codes import as_half, divisor
        from kvfrontier.cache.precise import precise

        vectors = precise(vectors)
        scale = as_half(vectors.abs().amax(-1, keepdim=True) / 127)
        codes = (vectors / divisor(scale, vectors.dtype)).round_().clamp_(-127, 127)
        return codes.to(torch.int8), scale

    def decode(self, parts: Sequence[Tensor], head_dim: int, dtype: dtype) -> Tensor:
        """x = q s."""
        from kvfrontier.cache.precise import precise_type

        codes, scale = parts
        return codes.to(precise_type(dtype)).mul_(scale).to(dtype)

    def vector_bytes(self, head_dim: int) -> int:
        """A byte an element, and the scale."""
        return head_dim + 2
