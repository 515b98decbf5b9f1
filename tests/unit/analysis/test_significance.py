"""The tests behind `compare`: no change gives false alarms as rarely as the level says, a change is found."""

from __future__ import annotations

import numpy as np
import pytest
from kvfrontier.analysis.significance import (
    benjamini_hochberg,
    holm,
    mcnemar,
    over_cells,
    over_repeats,
    paired,
    scatter,
    welch,
)
from scipy import stats

TRIALS = 2000
CV = 0.05


@pytest.fixture
def draw():
    return np.random.default_rng(20240229)


def repeats(draw, shape, slowdown=1.0):
    """Mean and deviation of the logarithms of timed repeats, `shape` = (..., repeats)."""
    logs = np.log(slowdown * (1 + CV * draw.standard_normal(shape)))
    return logs.mean(-1), logs.std(-1, ddof=1)


def compared(draw, cells, n, slowdown=1.0):
    (mean_a, sd_a), (mean_b, sd_b) = repeats(draw, (cells, n)), repeats(draw, (cells, n), slowdown)
    count = np.full(cells, float(n))
    return mean_b - mean_a, scatter(sd_a, count, sd_b, count)


def alarms(p) -> float:
    return float(np.mean(np.asarray(p) < 0.05))


@pytest.mark.parametrize(("cells", "test"), [(3, "t"), (9, "t"), (10, "Wilcoxon"), (40, "Wilcoxon")])
def test_over_cells_is_wrong_as_often_as_it_says(draw, cells, test):
    found = [over_cells(draw.standard_normal(cells)) for _ in range(1000)]
    assert {effect.test for effect in found} == {test}
    assert 0.03 < alarms([effect.p for effect in found]) < 0.07
    assert 0.93 < np.mean([effect.low <= 0 <= effect.high for effect in found]) < 0.97, "the 95 % interval"


def test_outliers_do_not_hide_a_change_from_ranks(draw):
    differences = 0.1 + 0.03 * draw.standard_normal(12)
    differences[0] = -3.0  # the machine slept
    assert over_cells(differences).p < 0.05 < stats.ttest_1samp(differences, 0).pvalue
    assert over_cells(differences).effect == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_welch_is_wrong_at_most_as_often_as_it_says(draw, n):
    effect, noise = compared(draw, TRIALS, n)
    _, low, high, p = welch(effect, noise)
    assert alarms(p) < 0.06
    assert np.mean((low <= 0) & (high >= 0)) > 0.94


@pytest.mark.parametrize(("cells", "n"), [(2, 3), (5, 3), (9, 5)])
def test_few_cells_against_their_repeats_are_wrong_at_most_as_often_as_they_say(draw, cells, n):
    found = [over_repeats(*compared(draw, cells, n)) for _ in range(TRIALS)]
    assert 0.02 < alarms([effect.p for effect in found]) < 0.06


def test_a_tenth_slower_is_found(draw):
    many = [over_cells(compared(draw, 12, 3, slowdown=1.1)[0]).p for _ in range(200)]
    few = [over_repeats(*compared(draw, 4, 3, slowdown=1.1)).p for _ in range(200)]
    alone = welch(*compared(draw, 200, 10, slowdown=1.1))[3]
    assert alarms(many) > 0.95 and alarms(few) > 0.9 and alarms(alone) > 0.9


def test_mcnemar_is_the_exact_binomial_test_and_counts_what_changed_alone(draw):
    lost, gained = draw.binomial(20, 0.1, TRIALS), draw.binomial(20, 0.1, TRIALS)
    p = mcnemar(lost.astype(float), gained.astype(float))
    expected = [stats.binomtest(int(a), int(a + b)).pvalue if a + b else 1.0 for a, b in zip(lost, gained, strict=True)]
    np.testing.assert_allclose(p, expected)
    assert alarms(p) < 0.05 and mcnemar(np.array([9.0]), np.array([0.0]))[0] < 0.01


def test_paired_is_students_t(draw):
    differences = draw.standard_normal((50, 8)) + 0.3
    n = np.full(50, 8.0)
    p = paired(differences.mean(1), differences.std(1, ddof=1), n)[3]
    np.testing.assert_allclose(p, stats.ttest_1samp(differences, 0, axis=1).pvalue)


def test_holm_keeps_the_chance_of_any_false_alarm(draw):
    families = draw.random((TRIALS, 20))
    assert 0.035 < np.mean([(holm(p) < 0.05).any() for p in families]) < 0.065
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, np.nan]), [0.03, 0.06, 0.06, np.nan])


def test_benjamini_hochberg_keeps_the_share_of_false_alarms(draw):
    shares = []
    for _ in range(300):
        p = np.concatenate([draw.random(80), draw.random(20) * 1e-4])  # the last twenty are real
        found = benjamini_hochberg(p) < 0.05
        shares.append(found[:80].sum() / max(1, found.sum()))
        assert found[80:].all()
    assert np.mean(shares) < 0.06


def test_what_cannot_be_said_is_nan_and_no_alarm():
    assert np.isnan(over_cells([0.1, 0.2]).p) and np.isnan(over_cells([]).p)
    one = np.array([1.0])
    noise = scatter(np.array([np.nan]), one, np.array([np.nan]), one)
    assert np.isnan(welch(np.array([0.5]), noise)[3][0])
    assert np.isnan(holm([np.nan])).all() and np.isnan(benjamini_hochberg([np.nan, np.nan])).all()


def test_without_any_scatter_a_difference_is_certain():
    none, two = np.zeros(2), np.full(2, 2.0)
    assert welch(np.array([0.0, 0.5]), scatter(none, two, none, two))[3].tolist() == [1.0, 0.0]
    assert over_cells([0.0, 0.0]).test == "same" and over_cells([0.2] * 4).p == 0.0
