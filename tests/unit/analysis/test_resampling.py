"""Tests and intervals over the same items: exact against brute force, as often wrong as they say, honest when few."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kvfrontier.analysis.resampling import ENUMERATED, mean_interval, needed, share_interval, sign_flips
from kvfrontier.analysis.significance import holm
from scipy import stats

TRIALS = 250


@pytest.fixture
def draw():
    return np.random.default_rng(20240301)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (3, 0), (0, 9), (4, 5), (2, 11), (30, 12)])
def test_one_item_a_cluster_is_mcnemars_exact_test(lost, gained):
    sums = [-1.0] * lost + [1.0] * gained + [0.0] * 7
    expected = stats.binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert sign_flips(sums) == pytest.approx(expected)


def test_few_clusters_are_tried_in_every_way(draw):
    for sums in (draw.integers(-4, 5, 9).astype(float), draw.standard_normal(8)):
        reached = abs(sums.sum()) - 1e-9
        ways = [abs(np.dot(signs, sums)) >= reached for signs in itertools.product((1, -1), repeat=len(sums))]
        assert sign_flips(sums) == pytest.approx(np.mean(ways))


def test_counts_of_many_clusters_are_exact(draw):
    counts = draw.integers(-3, 4, ENUMERATED + 4).astype(float)
    signs = np.array(list(itertools.product((1, -1), repeat=len(counts))), dtype=np.int8)
    expected = np.mean(np.abs(signs @ counts) >= abs(counts.sum()) - 1e-9)
    assert sign_flips(counts) == pytest.approx(expected, rel=1e-9)


def test_many_clusters_are_drawn_and_close_to_all_ways(draw):
    sums = draw.standard_normal(ENUMERATED + 3) + 0.35
    signs = np.array(list(itertools.product((1, -1), repeat=len(sums))), dtype=np.int8)
    everything = np.mean(np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9)
    assert sign_flips(sums) == pytest.approx(everything, abs=0.01)
    assert sign_flips(sums) == sign_flips(sums), "the same at every call"


def correlated(draw, clusters, items, chance=0.5):
    """Items of a cluster that are right or wrong together, under two strategies that are alike."""
    sides = draw.random((2, clusters)) < chance
    return (sides[0].astype(float) - sides[1]) * items


def test_questions_of_one_conversation_are_no_more_evidence(draw):
    """Four questions that always fall alike: item by item, chance would be called a difference far too often."""
    found = [correlated(draw, 12, 4) for _ in range(TRIALS)]
    assert np.mean([sign_flips(sums) < 0.05 for sums in found]) <= 0.05
    as_items = [np.repeat(sums / 4, 4) for sums in found]
    assert np.mean([sign_flips(sums) < 0.05 for sums in as_items]) > 0.2


def test_a_real_difference_is_found(draw):
    found = [(draw.random(40) < 0.9).astype(float) - (draw.random(40) < 0.5) for _ in range(100)]
    assert np.mean([sign_flips(sums) < 0.05 for sums in found]) > 0.9


@pytest.mark.parametrize(
    ("clusters", "right"), [(8, (0.9, 0.6)), (15, (0.5, 0.5)), (15, (1.0, 1.0)), (40, (0.95, 0.7))]
)
def test_the_interval_of_a_share_holds_the_truth(draw, clusters, right):
    hit = 0
    for _ in range(TRIALS):
        sides = [draw.random(clusters) < chance for chance in right]
        low, high = share_interval(sides[0].astype(float) - sides[1], np.ones(clusters))
        hit += low <= right[0] - right[1] <= high
        assert -1 <= low < high <= 1
    assert hit / TRIALS >= 0.94


def test_nothing_seen_in_few_items_is_a_wide_interval():
    low, high = share_interval(np.zeros(8), np.full(8, 4))
    assert low < -0.2 and high > 0.2 and low == -high


@pytest.mark.parametrize(("clusters", "shift"), [(6, 0.0), (12, 1.0), (40, 1.0)])
def test_the_bootstrap_interval_holds_the_truth(draw, clusters, shift):
    hit = 0
    for _ in range(TRIALS):
        low, high = mean_interval(draw.exponential(1.0, clusters) - 1 + shift, np.ones(clusters))
        hit += low <= shift <= high
    assert 0.88 <= hit / TRIALS <= 0.99, "skewed and few: not quite 95 %"


def test_clusters_weigh_by_their_items_and_few_say_nothing():
    low, high = mean_interval([10.0, 10.0, 10.0, 10.0, 10.0], [5, 5, 5, 5, 5])
    assert low == high == 2.0
    assert np.isnan(mean_interval([1.0, 2.0], [1, 1])).all()


@pytest.mark.parametrize("tests", [1, 4, 18])
def test_fewer_than_needed_can_never_be_told(tests):
    least = needed(0.05, tests)
    corrected = [holm([sign_flips([1.0] * count)] + [1.0] * (tests - 1))[0] for count in (least - 1, least)]
    assert corrected[0] >= 0.05 > corrected[1]
