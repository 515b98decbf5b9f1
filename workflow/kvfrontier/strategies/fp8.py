"""FP8: eight-bit floating point, as serving engines store their caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from kvfrontier.strategies import strategy
from kvfrontier.strategies._vector_codes import VectorCodes

if TYPE_CHECKING:
    from torch import Tensor, dtype

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


@strategy("fp8")
class Fp8(VectorCodes):
    """Hold every key and value vector in 8-bit floats: e4m3 (3 bits of mantissa) or e5m2 (2 bits, more range).

    x / s, saturated at the format's largest number (448 or 57344). `scale: tensor` has one s for everything, 1 unless
    it is calibrated, as vLLM's `kv_cache_dtype: fp8` does; `token_head` has s = max|x| / 448 (float16) per token and
    head, 8 + 16 / head_dim bits an element. Format: Micikevicius et al. 2022, arXiv:2209.05433. e5m2 needs no scale.
    Differs: a call's own tokens see each other in full precision.
    Phases: end of prefill, every decode step. Needs: nothing.
    """

    format: Annotated[Literal["e4m3", "e5m2"], Field(description="Bits of exponent and mantissa")] = "e4m3"
    scale: Annotated[
        Literal["tensor", "token_head"], Field(description="One scale for everything, or one a token and head")
    ] = "tensor"
    tensor_scale: Annotated[float, Field(gt=0, description="s of `scale: tensor`: largest |x| to expect / 448")] = 1.0

    @model_validator(mode="after")
    def _check(self) -> Fp8:
        if self.format == "e5m2" and self.scale == "token_head":
            raise ValueError("fp8 e5m2 has the range of float16 and takes no scale: leave scale at 'tensor'")
        if self.tensor_scale != 1.0 and (self.format == "e5m2" or self.scale == "token_head"):
            raise ValueError("tensor_scale belongs to format e4m3 with scale 'tensor'")
        return self

    def encode(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """The floats' bytes `[n, head_dim]`; with `token_head` the scale `[n, 1]` float16."""
        from kvfrontier.cache.codes import as_half, divisor
        from kvfrontier.cache.precise import precise

        vectors, largest = precise(vectors), LARGEST[self.format]
        if self.scale == "tensor":
            return (self._bytes(vectors / self.tensor_scale),)
        scale = as_half(vectors.abs().amax(-1, keepdim=True) / largest)
        return self._bytes(vectors / divisor(scale, vectors.dtype)), scale

    def decode(self, parts: Sequence[Tensor], head_dim: int, dtype: dtype) -> Tensor:
        """x = float s."""
        from kvfrontier.cache.precise import precise_type

        floats = parts[0].view(self._type()).to(precise_type(dtype))
        return floats.mul_(self.tensor_scale if self.scale == "tensor" else parts[1]).to(dtype)

    def vector_bytes(self, head_dim: int) -> int:
        """A byte an element, and the scale if each vector has one."""
        return head_dim + (2 if self.scale == "token_head" else 0)

    def _bytes(self, scaled: Tensor) -> Tensor:
        """Saturated (a conversion alone gives NaN or infinity); as bytes, since few operations take 8-bit floats."""
        import torch

        largest = LARGEST[self.format]
        return scaled.clamp(-largest, largest).to(self._type()).view(torch.uint8)

    def _type(self) -> dtype:
        import torch

        return {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[self.format]
