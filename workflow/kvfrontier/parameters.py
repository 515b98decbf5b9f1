"""Settings of plugins: frozen dataclasses whose fields are the configuration schema.

pydantic validates them, so a field says everything once: type, bounds, default, description.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.dataclasses import dataclass as pydantic_dataclass

T = TypeVar("T")


def settings(cls: type[T]) -> type[T]:
    """Turn `cls` into a frozen dataclass that refuses unknown fields, NaN and values out of bounds."""
    return pydantic_dataclass(cls, frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))


def _read_budget(value: object) -> float | int:
    """A share in (0, 1] as float, or a token count above 1 as int; 1, 1.0 and "1" are all the whole cache."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number: a share in (0, 1] or a token count of 2 or more (without quotes)")
    if 0 < value <= 1:
        return float(value)
    if 1 < value < inf and value == int(value):
        return int(value)
    raise ValueError("a share in (0, 1] or a token count of 2 or more")


def tokens_of(budget: float, tokens: int) -> int:
    """A budget in tokens: a count as it is, a share of `tokens` rounded up.

    1e-9: 0.07 * 100 is 7.000000000000001 in binary and must not become 8 tokens.
    """
    return budget if isinstance(budget, int) else ceil(budget * tokens - 1e-9)


_BUDGET_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "integer", "minimum": 2}]}
Budget = Annotated[float | int, BeforeValidator(_read_budget), WithJsonSchema(_BUDGET_SCHEMA)]
"""Retained (or fetched) share of the KV cache in (0, 1], or a token count (2 or more) per KV head."""

Share = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
