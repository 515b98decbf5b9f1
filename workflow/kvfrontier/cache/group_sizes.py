"""Sizes of groups and packed codes: what formulas need, without torch."""

from __future__ import annotations

SCALE_AND_ZERO_BYTES = 4  # float16 each, one pair a group


def packed_width(count: int, bits: int) -> int:
    """Bytes of `count` codes."""
    return -(-count * bits // 8)


def even_group(size: int, head_dim: int) -> int:
    """The largest group of at most `size` that divides `head_dim`: every group of a vector has the same size."""
    return max(group for group in range(1, min(size, head_dim) + 1) if head_dim % group == 0)


def grouped_vector_bytes(head_dim: int, bits: int, group_size: int) -> int:
    """A vector in groups of at most `group_size`, each group's codes in whole bytes."""
    group = even_group(group_size, head_dim)
    return head_dim // group * (packed_width(group, bits) + SCALE_AND_ZERO_BYTES)
