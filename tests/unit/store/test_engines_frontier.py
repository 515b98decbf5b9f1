"""Engines side by side: which of them a quality belongs to, and who beats whom across engines. Invented numbers."""

from __future__ import annotations

from importlib.resources import files

import duckdb
import pytest
from kvfrontier.analysis.side_by_side import side_by_side

SPEED, FIDELITY = "speed(context_tokens=9)", "fidelity(context_tokens=9)"
KEYS = "model, engine_label, device, source, strategy, strategy_label, budget, workload_label, metric, phase, mean"


class Campaign:
    """The tables that views.sql makes the frontier from."""

    def __init__(self):
        text = files("kvfrontier.store").joinpath("views.sql").read_text()
        self.connection = duckdb.connect()
        for name in ("MACRO is_on_frontier", "MACRO without_budget"):
            start = text.index(f"CREATE {name}")
            self.connection.execute(text[start : text.index(";", start) + 1])
        self.make = text[text.index("CREATE TABLE engines_frontier") :].partition(";")[0]
        self.connection.execute("""
            CREATE TABLE metrics AS FROM (VALUES ('kl_divergence', 'quality', 'lower', 'nat'),
              ('output_tokens_per_s', 'cost', 'higher', 'tokens/s'), ('achieved_budget', '', 'lower', 'share'),
              ('kv_type_agreement', '', 'higher', 'share')) AS m(metric, role, better, unit);
            CREATE TABLE configurations (model VARCHAR, engine_label VARCHAR, device VARCHAR, source VARCHAR,
              strategy VARCHAR, strategy_label VARCHAR, budget DOUBLE, workload_label VARCHAR, metric VARCHAR,
              phase VARCHAR, mean DOUBLE, ci_low DOUBLE, ci_high DOUBLE, batch_size BIGINT, context_tokens BIGINT,
              output_tokens BIGINT);
        """)

    def measured(self, engine, strategy, speed=None, kl=None, budget=1.0, agreement=None, source="measured"):
        label = strategy if strategy == "full" else f"{strategy}(budget={budget})"
        values = {"output_tokens_per_s": speed, "kl_divergence": kl, "achieved_budget": budget}
        values["kv_type_agreement"] = agreement
        for metric, value in values.items():
            if value is not None:
                workload = FIDELITY if metric == "kl_divergence" else SPEED
                row = (
                    "m",
                    engine,
                    "cpu",
                    source,
                    strategy,
                    label,
                    None if strategy == "full" else budget,
                    workload,
                    metric,
                )
                self.connection.execute(
                    f"INSERT INTO configurations ({KEYS}) VALUES ({'?, ' * 9}NULL, ?)", [*row, value]
                )

    def frontier(self):
        self.connection.execute("""
            CREATE TABLE costs AS SELECT model, engine_label, device, strategy_label, workload_label, source,
              batch_size, context_tokens, output_tokens, metric AS cost_metric, mean AS cost, ci_low AS cost_low,
              ci_high AS cost_high, unit AS cost_unit, better AS cost_better
            FROM configurations JOIN metrics USING (metric) WHERE role = 'cost'
        """)
        self.connection.execute(self.make)
        found = self.connection.sql(
            "SELECT engine_label, strategy, quality_engine_label, quality, cost, on_frontier FROM engines_frontier"
        )
        return {row[:2]: row[2:] for row in found.fetchall()}


@pytest.fixture
def campaign():
    campaign = Campaign()
    campaign.measured("torch", "full", speed=5.0, kl=0.0)
    campaign.measured("torch", "h2o", speed=8.0, kl=0.2, budget=0.5)
    return campaign


def test_an_engine_without_logits_stands_at_the_full_caches_quality_and_says_whose(campaign):
    campaign.measured("vllm", "full", speed=9.0)
    assert campaign.frontier() == {
        ("torch", "full"): ("torch", 0.0, 5.0, False),
        ("torch", "h2o"): ("torch", 0.2, 8.0, False),  # slower than vLLM, and worse
        ("vllm", "full"): ("torch", 0.0, 9.0, True),
    }
    (table,) = side_by_side(campaign.connection)
    assert table.title == "m · all engines · cpu"
    shown = [dict(zip(table.table.header, row, strict=True)) for row in table.table.rows]
    assert [(row["engine"], row["strategy"], row["measured on"], row["tokens/s"]) for row in shown] == [
        ("torch", "full", "torch", "5"), ("vllm", "full", "torch", "9*"), ("torch", "h2o", "torch", "8"),
    ]  # fmt: skip


def test_who_is_faster_but_worse_stays(campaign):
    campaign.measured("vllm", "full", speed=6.0)
    found = campaign.frontier()
    assert found["torch", "h2o"][-1] and found["vllm", "full"][-1] and not found["torch", "full"][-1]


@pytest.mark.parametrize("settings", [{"budget": None}, {"budget": 0.5}, {"agreement": 0.8}])
def test_not_so_where_settings_change_what_it_says(campaign, settings):
    campaign.measured("vllm", "full", speed=9.0)
    campaign.measured("vllm(changed)", "full", speed=20.0, **settings)
    found = campaign.frontier()
    assert ("vllm(changed)", "full") not in found and found["vllm", "full"][-1]


def test_an_engine_with_qualities_of_its_own_stands_at_those(campaign):
    campaign.measured("kvpress", "full", speed=4.0, kl=0.01)
    found = campaign.frontier()
    assert found["kvpress", "full"][:2] == ("kvpress", 0.01)


def test_of_one_engine_nothing_is_compared_and_models_are_not_measurements(campaign):
    campaign.measured("simulator", "full", speed=99.0, source="model")
    assert campaign.frontier() == {}
    assert side_by_side(campaign.connection) == []
