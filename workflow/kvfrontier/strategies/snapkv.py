"""SnapKV: what the end of the prompt attends to."""

from __future__ import annotations

from kvfrontier.strategies import strategy
from kvfrontier.strategies._window import WindowEviction


@strategy("snapkv")
class SnapKV(WindowEviction):
    """Keep the last w tokens of the prompt and, of the older, the k - w with the largest pooled weights from them.

    Paper: Li et al. 2024, arXiv:2404.14469 (LongBench settings: w 32, kernel 7, max pooling, k 1,024 to 4,096).
    Differs: one set per KV head, not per query head (the authors store KV expanded to all query heads); k < 2 w halves
    the budget between window and chosen tokens, where the authors refuse k <= w; ties keep the older token; a later
    turn compresses again, with its own window.
    Phases: prefill; generated tokens are not evicted. Needs: the last w queries, so w n scores a head, no n x n matrix.
    """
