"""Tests of `did it change?` for many pairs at once: two-sided, effects with 95 % intervals, NaN for `cannot be said`.

Times and rates are compared as logarithms of ratios, so that a tenth more is the same in every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]

RANKED_FROM = 10
"""Cells from which on ranks are used: below, the smallest p of a rank test is too large to survive a correction."""
RANKED_TO = 2000
"""Cells up to which the interval of the ranks is worked out (it takes all pairs); beyond, the mean is normal enough."""


class Effect(NamedTuple):
    """How much, its 95 % interval, and how likely so much is without any change. NaN: cannot be said."""

    effect: float
    low: float
    high: float
    p: float
    test: str


def over_cells(differences: ArrayLike) -> Effect:
    """One difference a cell: are they zero in the middle? Wilcoxon's signed ranks, or Student's t for few or very many.

    Less than 3 differences say nothing; all zero is the same.
    """
    values = np.asarray(differences, dtype=float)
    if not values.any():
        return Effect(0.0, 0.0, 0.0, 1.0, "same") if len(values) else Effect(*[np.nan] * 4, "")
    if len(values) < 3:
        return Effect(float(values.mean()), np.nan, np.nan, np.nan, "")
    if RANKED_FROM <= len(values) <= RANKED_TO:
        return _ranked(values)
    mean, error = values.mean(), stats.sem(values)
    if error == 0:  # the same difference everywhere, and not zero
        return Effect(float(mean), float(mean), float(mean), 0.0, "t")
    reach = stats.t.ppf(0.975, len(values) - 1) * error
    return Effect(mean, mean - reach, mean + reach, float(stats.ttest_1samp(values, 0).pvalue), "t")


def _ranked(values: Floats) -> Effect:
    """Wilcoxon's test with the estimate that belongs to it: the median of all pairwise means (Hodges and Lehmann)."""
    count = len(values)
    rows, columns = np.triu_indices(count)
    means = np.sort((values[rows] + values[columns]) / 2)
    spread = np.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    cut = max(0, int(count * (count + 1) / 4 - stats.norm.ppf(0.975) * spread))
    p = float(stats.wilcoxon(values, zero_method="pratt").pvalue)
    return Effect(float(np.median(means)), float(means[cut]), float(means[-1 - cut]), p, "Wilcoxon")


class Scatter(NamedTuple):
    """Standard error of each effect, and its degrees of freedom."""

    error: Floats
    freedom: Floats


def scatter(sd_a: Floats, n_a: Floats, sd_b: Floats, n_b: Floats) -> Scatter:
    """Of differences of means, as Welch and Satterthwaite have it. NaN where one side has fewer than 2 values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        part_a, part_b = sd_a**2 / n_a, sd_b**2 / n_b
        freedom = (part_a + part_b) ** 2 / (part_a**2 / (n_a - 1) + part_b**2 / (n_b - 1))
        return Scatter(np.sqrt(part_a + part_b), freedom)


def welch(effect: Floats, noise: Scatter) -> list[Floats]:
    """Welch's t, pair by pair: effect, low, high, p."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _student(effect, noise.error, noise.freedom)


def over_repeats(effects: Floats, noise: Scatter) -> Effect:
    """The mean of few cells' effects against the scatter of their repeats, where cells are too few to be the sample."""
    variances = noise.error**2
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variances.sum() ** 2 / (variances**2 / noise.freedom).sum()
        return Effect(
            *map(float, _student(effects.mean(), np.sqrt(variances.sum()) / len(effects), freedom)), "repeats"
        )


def paired(mean: Floats, sd: Floats, n: Floats) -> list[Floats]:
    """Student's t of paired differences with this mean and deviation: effect, low, high, p."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _student(mean, sd / np.sqrt(n), n - 1)


def _student(effect: Floats, error: Floats, freedom: Floats) -> list[Floats]:
    """Effect, interval and p; without any scatter a difference is certain, and none is none."""
    reach = stats.t.ppf(0.975, freedom) * error
    p = 2 * stats.t.sf(np.abs(effect) / error, freedom)
    steady = error == 0
    reach, p = np.where(steady, 0.0, reach), np.where(steady, np.where(effect == 0, 1.0, 0.0), p)
    return [effect, effect - reach, effect + reach, p]


def mcnemar(lost: Floats, gained: Floats) -> Floats:
    """Exact p of right/wrong outcomes of the same items: only those count that are right on one side alone."""
    either = lost + gained
    p = np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(lost, gained), either, 0.5))
    return np.where(either == 0, 1.0, p)


def holm(p: ArrayLike) -> Floats:
    """Corrected so that one false alarm among all of them is as rare as the level says (Holm). NaN is no test."""
    return _corrected(p, _holm)


def benjamini_hochberg(p: ArrayLike) -> Floats:
    """Corrected so that of the alarms at most the level's share is false, on average. NaN is no test."""
    return _corrected(p, stats.false_discovery_control)


def _holm(p: Floats) -> Floats:
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1.0, steps)
    return corrected


def _corrected(p: ArrayLike, correct: Callable[[Floats], Floats]) -> Floats:
    values = np.asarray(p, dtype=float)
    known = ~np.isnan(values)
    result = np.full_like(values, np.nan)
    if known.any():
        result[known] = correct(values[known])
    return result
