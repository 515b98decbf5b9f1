"""The same items under two strategies: how much differs, and could chance alone have split them so?

All is told from whole clusters (conversations, documents): items of one cluster rise and fall together, so that twice
as many questions about one conversation are not twice as much evidence.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from kvfrontier.analysis.significance import Floats

COUNTED = 5_000_000
"""Clusters times items that differ, up to which the sums of counts are worked out exactly."""
ENUMERATED = 14
"""Clusters with other sums than counts, up to which all 2^n signs are tried; beyond, FLIPS of them."""
FLIPS = 20_000
RESAMPLES = 4000
FEWEST_RESAMPLED = 5
"""Clusters below which a bootstrap has too few distinct samples to say anything."""
ROUNDING = 1e-9


def sign_flips(sums: ArrayLike) -> float:
    """Two-sided p of the sums of differences, one a cluster, if they have no direction: were the two strategies alike,
    each sum could as well have the other sign. Exact for counts (of one item a cluster: McNemar's exact test) and for
    few clusters, else of FLIPS draws.
    """
    values = np.asarray(sums, dtype=float)
    values = values[np.abs(values) > ROUNDING]
    if not len(values):
        return 1.0
    counts = np.abs(values).round().astype(int)
    if np.allclose(np.abs(values), counts, atol=ROUNDING) and len(counts) * counts.sum() <= COUNTED:
        return _of_counts(counts, abs(round(values.sum())))
    reached = abs(values.sum()) * (1 - ROUNDING)
    if len(values) <= ENUMERATED:
        signs = 1 - 2 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
        return float(np.mean(np.abs(signs @ values) >= reached))
    draw, beyond = np.random.default_rng(0), 0
    for _ in range(FLIPS // 1000):
        signs = 1 - 2 * draw.integers(0, 2, (1000, len(values)), dtype=np.int8)
        beyond += int(np.sum(np.abs(signs @ values) >= reached))
    return (beyond + 1) / (FLIPS + 1)


def _of_counts(counts: NDArray[np.int_], reached: int) -> float:
    """The chance that counts with random signs sum to `reached` or more, either way."""
    chances = np.ones(1)  # of each sum, from the least to the largest in steps of 1
    for count in counts:
        wider = np.zeros(len(chances) + 2 * count)
        wider[: len(chances)] += chances / 2
        wider[2 * count :] += chances / 2
        chances = wider
    sums = np.arange(len(chances)) - counts.sum()
    return float(min(1.0, chances[np.abs(sums) >= reached].sum()))


def share_interval(sums: ArrayLike, items: ArrayLike) -> tuple[float, float]:
    """95 % interval of the difference of two shares of the same items; never of no width.

    As Bonett and Price (2012) have it for matched pairs, with clusters for pairs: one made-up cluster lost, one gained.
    """
    values, counts = np.asarray(sums, dtype=float), np.asarray(items, dtype=float)
    together = np.append(values * len(values) / counts.sum(), (-1.0, 1.0))
    reach = stats.t.ppf(0.975, len(together) - 1) * stats.sem(together)
    return max(-1.0, together.mean() - reach), min(1.0, together.mean() + reach)


def mean_interval(sums: ArrayLike, items: ArrayLike) -> tuple[float, float]:
    """95 % bootstrap interval (seeded) of the mean difference of the same items; NaN for too few clusters.

    Percentiles of resampled clusters, further out for few of them, as Hesterberg (2015) corrects the plain ones.
    """
    values, counts = np.asarray(sums, dtype=float), np.asarray(items, dtype=float)
    size = len(values)
    if size < FEWEST_RESAMPLED:
        return math.nan, math.nan
    draw = np.random.default_rng(0)
    means: list[Floats] = []
    for _ in range(RESAMPLES // 500):
        chosen = draw.integers(0, size, (500, size))
        means.append(values[chosen].sum(1) / counts[chosen].sum(1))
    tail = stats.norm.cdf(-math.sqrt(size / (size - 1)) * stats.t.ppf(0.975, size - 1))
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return float(low), float(high)


def needed(alpha: float, tests: int) -> int:
    """Clusters that must all change the same way before the smallest of so many corrected p falls below `alpha`."""
    return math.floor(1 + math.log2(max(1, tests) / alpha)) + 1
