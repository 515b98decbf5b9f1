"""Intervals: against scipy where it is installed, against published values everywhere."""

from __future__ import annotations

import duckdb
import pytest
from kvfrontier.store.database import _t_quantile_macro
from kvfrontier.store.quantiles import t_quantile, t_table

PUBLISHED_T_975 = {
    1: 12.7062047362,
    2: 4.3026527297,
    5: 2.5705818356,
    10: 2.2281388520,
    30: 2.0422724563,
    100: 1.9839715185,
}
# Newcombe (1998), Statistics in Medicine 17, table I, method 3: (right, asked) -> interval
PUBLISHED_WILSON = {
    (81, 263): (0.2553, 0.3662),
    (15, 148): (0.0624, 0.1605),
    (0, 20): (0.0, 0.1611),
    (1, 29): (0.0061, 0.1718),
}


def test_t_quantiles_are_the_published_ones():
    for df, expected in PUBLISHED_T_975.items():
        assert t_quantile(df) == pytest.approx(expected, abs=1e-9)


def test_t_quantiles_agree_with_scipy_for_every_tabulated_df():
    stats = pytest.importorskip("scipy.stats", reason="scipy is not among the pinned packages of this environment")
    assert t_table() == pytest.approx([stats.t.ppf(0.975, df) for df in range(1, 201)], abs=1e-10)


@pytest.mark.parametrize("df", [1, 2, 200, 201, 1000, 10**6])
def test_the_sql_macro_continues_the_table_without_a_step(df):
    stats = pytest.importorskip("scipy.stats", reason="scipy is not among the pinned packages of this environment")
    with duckdb.connect() as connection:
        connection.execute(_t_quantile_macro())
        (value,) = connection.execute(f"SELECT t_quantile_975({df})").fetchall()[0]
    assert value == pytest.approx(stats.t.ppf(0.975, df), rel=1e-9)


def test_wilson_intervals_are_the_published_ones(connection):
    for (right, asked), (low, high) in PUBLISHED_WILSON.items():
        sql = f"SELECT wilson_low({right} / {asked}, {asked}), wilson_high({right} / {asked}, {asked})"
        assert connection.execute(sql).fetchall()[0] == pytest.approx((low, high), abs=5e-5)


def test_one_value_has_no_interval(connection):
    assert connection.execute("SELECT t_half_width(0.1, 1)").fetchall() == [(None,)]


def test_a_timed_metric_counts_repeats_after_averaging_requests(connection):
    rows = connection.sql("""
        SELECT s.n, s.mean, s.ci_low, s.ci_high, list(r.value ORDER BY r.repeat)
        FROM summary s JOIN cells USING (cell_id)
        JOIN (SELECT cell_id, repeat, avg(value) AS value FROM measurements WHERE metric = 'ttft_s' GROUP BY ALL) r
          USING (cell_id)
        WHERE metric = 'ttft_s' AND batch_size = 4 GROUP BY ALL
    """).fetchall()
    assert rows
    for n, mean, low, high, repeats in rows:
        assert n == 3 == len(repeats)
        centre = sum(repeats) / 3
        sd = (sum((value - centre) ** 2 for value in repeats) / 2) ** 0.5
        half = 4.3026527297 * sd / 3**0.5
        assert (mean, low, high) == pytest.approx((centre, centre - half, centre + half), rel=1e-9)


def test_a_proportion_counts_items_by_depth_and_all_together(connection):
    counts = dict(
        connection.sql("""
            SELECT coalesce(phase, 'all'), any_value(n) FROM summary WHERE metric = 'retention_correct' GROUP BY ALL
        """).fetchall()
    )
    assert counts == {"depth=0": 12, "depth=0.5": 12, "all": 24}


def test_only_repeated_work_can_be_noisy(connection):
    found = connection.sql("""
        SELECT DISTINCT metric FROM summary WHERE noisy IS NOT NULL AND metric NOT IN
          ('ttft_s', 'tpot_s', 'e2e_latency_s', 'output_tokens_per_s',
           'requests_per_s', 'goodput_requests_per_s', 'offered_requests_per_s')
    """).fetchall()
    assert not found
    assert not connection.sql("SELECT * FROM summary WHERE noisy <> (coalesce(cv, 0) > 0.10)").fetchall()
