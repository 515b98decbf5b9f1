"""Ratios to the engine that runs the full cache alone."""

from __future__ import annotations

import pytest
from kvfrontier.reports.chart import charts, data_of
from kvfrontier.store.database import build_database
from kvfrontier.store.query import open_database
from synthetic import BASELINE, write_campaign

CHART = next(found for found in charts() if found.name == "over_baseline")
T_975_TWO_DEGREES = 4.3026527
"""Student's t for 95 % intervals of three repeats."""


@pytest.fixture
def connection(tmp_path):
    """The usual campaign, and vLLM's full cache for one of its workloads."""
    campaign_dir = write_campaign(tmp_path, more=(BASELINE,))
    build_database(campaign_dir)
    with open_database(campaign_dir) as connection:
        yield connection


def test_values_are_divided_by_the_baselines_for_the_same_work(connection):
    table = data_of(CHART, connection).to_pylist()
    assert {row["baseline"] for row in table} == {"vllm"}
    assert {row["work"] for row in table} == {"batch 4, 1,024 tokens in, 32 out"}  # the only one that it was asked
    assert (
        len(table) == 2 * 7
    )  # both metrics of the seven configurations of torch, and of one model: the other one has no baseline
    for row in table:
        metric = "ttft_s" if "first token" in row["panel"] else "output_tokens_per_s"
        (mean, error), (base, base_error) = (
            connection.execute(
                """SELECT mean, sd / sqrt(n) / mean FROM configurations WHERE model = 'test-alpha' AND engine = $engine
                   AND metric = $metric AND phase IS NULL AND batch_size = 4 AND context_tokens = 1024
                   AND strategy_label = $strategy""",
                {"engine": engine, "metric": metric, "strategy": strategy},
            ).fetchone()
            for engine, strategy in (("torch", row["strategy_label"]), ("vllm", "full"))
        )
        assert row["times"] == pytest.approx(mean / base)
        assert row["ci_high"] / row["times"] == pytest.approx(
            2.718281828459045 ** (T_975_TWO_DEGREES * (error**2 + base_error**2) ** 0.5), rel=1e-5
        )
        assert row["ci_low"] * row["ci_high"] == pytest.approx(row["times"] ** 2)


def test_the_ratios_are_drawn(connection):
    drawn = CHART.draw(data_of(CHART, connection)).to_dict()
    assert drawn["facet"]["sort"] == [
        "test-alpha · torch(prefill=sdpa) · cpu | output tokens/s, over vllm",
        "test-alpha · torch(prefill=sdpa) · cpu | seconds to first token, over vllm",
    ]
