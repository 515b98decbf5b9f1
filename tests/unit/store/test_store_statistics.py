"""Intervals: against scipy where it is installed, against published values everywhere."""

from __future__ import annotations

from contextlib import contextmanager

import duckdb
import pytest
from kvfrontier.metrics import Measurement
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.store.database import _t_quantile_macro, build_database
from kvfrontier.store.quantiles import t_quantile, t_table
from kvfrontier.store.query import open_database
from synthetic import write_measured

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


@contextmanager
def published(folder, workload, by_seed):
    """Cells of one configuration. by_seed: measurements of each."""
    cells = {Cell("m", Component("torch"), "cpu", Component("full"), workload, seed): by_seed[seed] for seed in by_seed}
    campaign = write_measured(folder, cells)
    build_database(campaign)
    with open_database(campaign) as connection:
        yield connection


@pytest.mark.parametrize(
    ("workload", "documents"),
    [(Component("lm_eval", (("task", "piqa"),)), 18), (Component("retention", (("conversations", 12),)), 24)],
    ids=["documents of a data set", "chats that each seed draws"],
)
def test_a_document_that_several_seeds_draw_is_one_observation(tmp_path, workload, documents):
    def asked(seed):
        for request in range(6 * seed, 6 * seed + 12):
            yield Measurement("acc", float(request % 2), request=request)
            yield Measurement("answer_margin", request % 3, request=request)
        yield Measurement("kv_device_bytes", 100.0 + seed, "prefill")

    with published(tmp_path, workload, {seed: list(asked(seed)) for seed in (0, 1)}) as connection:
        found = connection.sql("SELECT metric, n, mean, ci_low, ci_high FROM configurations").fetchall()
        by_metric = {metric: numbers for metric, *numbers in found}
        wilson = connection.sql(f"SELECT wilson_low(0.5, {documents}), wilson_high(0.5, {documents})").fetchall()[0]
        assert by_metric["acc"] == [documents, 0.5, *wilson]
        n, mean, low, high = by_metric["answer_margin"]
        half = connection.sql(f"""
            SELECT t_quantile_975({documents - 1}) * stddev_samp(value) / sqrt({documents})
            FROM measurements WHERE metric = 'answer_margin'""").fetchall()[0][0]
        assert (n, mean, low, high) == pytest.approx((documents, 1, 1 - half, 1 + half))
        assert by_metric["kv_device_bytes"][:2] == [2, 100.5], "a value of the cell, not of a document"
        assert {n for (n,) in connection.sql("SELECT n FROM summary WHERE metric = 'acc'").fetchall()} == {12}


def test_requests_of_one_queue_are_one_observation(tmp_path):
    """They are late together: what is drawn anew is the repeat."""
    in_time = ((1, 1, 1, 1), (1, 0, 1, 0), (1, 1, 1, 0))
    values = [
        Measurement("within_limits", float(value), repeat=repeat, request=request)
        for repeat, requests in enumerate(in_time)
        for request, value in enumerate(requests)
    ]
    with published(tmp_path, Component("arrivals"), {0: values}) as connection:
        half = 4.3026527297 * 0.25 / 3**0.5
        for table in ("summary", "configurations"):
            found = connection.sql(f"SELECT n, mean, ci_low, ci_high FROM {table}").fetchall()
            assert found == [pytest.approx((3, 0.75, 0.75 - half, 0.75 + half))]
        assert connection.sql("SELECT noisy FROM summary").fetchall() == [(True,)]
