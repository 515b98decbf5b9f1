"""Whole tokens out of shares that are not whole."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor


def apportion(shares: Sequence[Fraction | float], total: int) -> list[int]:
    """Each share rounded down, and what `total` (their sum) is short of given to the largest remainders, first first.

    No share grows beyond its own rounding up.
    """
    whole = [floor(share) for share in shares]
    remainders = [share - part for share, part in zip(shares, whole, strict=True)]
    by_remainder = sorted(range(len(shares)), key=lambda index: -remainders[index])
    for index in by_remainder[: total - sum(whole)]:
        whole[index] += 1
    return whole


def spread(available: Sequence[int], total: int) -> list[int]:
    """`total` as evenly as possible, to none more than its `available` (which are at least `total` together)."""
    given = [0] * len(available)
    by_size = sorted(range(len(available)), key=lambda index: available[index])
    for waiting, index in zip(range(len(available), 0, -1), by_size, strict=True):
        given[index] = min(available[index], total // waiting)
        total -= given[index]
    return given
