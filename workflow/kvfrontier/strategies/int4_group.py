"""Group-wise 4 bit: FlexGen's cache compression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvfrontier.cache.group_sizes import even_group, grouped_vector_bytes
from kvfrontier.parameters import PositiveInt
from kvfrontier.strategies import strategy
from kvfrontier.strategies._vector_codes import VectorCodes

if TYPE_CHECKING:
    from torch import Tensor, dtype


@strategy("int4_group")
class Int4Group(VectorCodes):
    """Hold every key and value vector in groups of 4-bit codes along the head dimension: asymmetric, min to max.

    Paper: Sheng et al. 2023, arXiv:2303.06865 (FlexGen, section 4.3: group 64). Two codes a byte; float16 scale and
    minimum a group: 4 + 32 / group_size bits an element (4.5 at 64).
    Differs: a head_dim that `group_size` does not divide gets the largest smaller group that does, where the authors
    pad; a group without a range is safe (theirs divides by zero); new tokens are coded after the call that brings them.
    Phases: end of prefill, every decode step. Needs: nothing.
    """

    group_size: Annotated[PositiveInt, Field(description="Neighbouring elements of a vector that share a scale")] = 64

    def encode(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Codes `[n, bytes]`, group after group, scale and zero `[n, groups]`."""
        from kvfrontier.cache.codes import pack, quantise

        groups = vectors.unflatten(1, (-1, even_group(self.group_size, vectors.shape[1])))
        codes, scale, zero = quantise(groups, bits=4)
        return pack(codes, bits=4).flatten(1), scale, zero

    def decode(self, parts: Sequence[Tensor], head_dim: int, dtype: dtype) -> Tensor:
        """x = q scale + zero."""
        from kvfrontier.cache.codes import dequantise, unpack

        packed, scale, zero = parts
        groups = scale.shape[-1]
        codes = unpack(packed.unflatten(-1, (groups, -1)), 4, head_dim // groups)
        return dequantise(codes, scale, zero, dtype).flatten(-2)

    def vector_bytes(self, head_dim: int) -> int:
        """Half a byte an element; two float16 a group."""
        return grouped_vector_bytes(head_dim, 4, self.group_size)
