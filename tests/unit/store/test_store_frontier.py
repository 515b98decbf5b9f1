"""One implementation of dominance, against the definition."""

from __future__ import annotations

import duckdb
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from kvfrontier.metrics import Measurement
from kvfrontier.store.database import build_database
from kvfrontier.store.query import open_database
from synthetic import measure

POINTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 6).map(lambda n: n / 4), st.integers(-3, 3).map(float)), max_size=25
)


@pytest.fixture(scope="module")
def macros():
    """A database with the macros of views.sql alone."""
    from importlib.resources import files

    text = files("kvfrontier.store").joinpath("views.sql").read_text()
    start = text.index("CREATE MACRO is_on_frontier")
    with duckdb.connect() as connection:
        connection.execute(text[start : text.index(";", start) + 1])
        yield connection


def dominated(point, points):
    group, gain, other = point
    return any(
        g == group and a >= gain and b >= other and (a > gain or b > other) for g, a, b in points
    )  # the definition, point by point


@settings(max_examples=200, deadline=None)
@given(points=POINTS)
def test_a_point_is_on_the_frontier_exactly_if_nothing_dominates_it(macros, points):
    values = ", ".join(f"({i}, '{g}', {a}::DOUBLE, {b}::DOUBLE)" for i, (g, a, b) in enumerate(points))
    if not points:
        return
    rows = macros.execute(
        f"SELECT i, is_on_frontier(a, b, g) FROM (VALUES {values}) AS points(i, g, a, b) ORDER BY i"
    ).fetchall()
    assert [on for _, on in rows] == [not dominated(point, points) for point in points]


def test_frontier_rows_agree_with_the_definition(connection):
    rows = connection.sql("""
        SELECT (model, engine_label, device, source, workload_label, quality_metric, cost_metric,
            cost_workload_label)::VARCHAR,
          CASE quality_better WHEN 'lower' THEN -quality ELSE quality END,
          CASE cost_better WHEN 'lower' THEN -cost ELSE cost END, on_frontier
        FROM frontier
    """).fetchall()
    groups = {}
    for group, gain, other, on in rows:
        groups.setdefault(group, []).append(((group, gain, other), on))
    assert len(groups) > 20
    for members in groups.values():
        points = [point for point, _ in members]
        assert [on for _, on in members] == [not dominated(point, points) for point in points]


def test_measured_and_modelled_points_never_meet(connection):
    assert not connection.sql("""
        SELECT * FROM frontier
        WHERE source = 'measured' AND engine = 'simulator' OR source = 'model' AND engine <> 'simulator'
    """).fetchall()


def test_kv_share_is_kept_bytes_over_the_full_caches(connection):
    shares = dict(
        connection.sql("""
            SELECT strategy_label, any_value(cost) FROM frontier
            WHERE cost_metric = 'kv_share' AND quality_metric = 'retention_correct' AND model = 'test-alpha'
            GROUP BY ALL
        """).fetchall()
    )
    assert shares["full"] == pytest.approx(1.0)
    assert shares["streaming_llm(budget=0.3)"] == pytest.approx(0.3, abs=1e-3)
    assert shares["h2o(budget=0.3)"] == pytest.approx(0.31, abs=1e-3)  # its scores count


def test_the_device_and_host_memory_are_counted_apart(connection):
    costs = {
        (label, name): cost
        for label, name, cost in connection.sql("""
            SELECT strategy_label, cost_metric, cost FROM costs
            WHERE cost_unit = 'B' AND model = 'test-alpha' AND workload_label LIKE 'retention%'
        """).fetchall()
    }
    half = {name: costs["h2o(budget=0.5)", name] for name in ("kv_bytes", "device_bytes", "host_bytes")}
    assert half["host_bytes"] > 0 and half["device_bytes"] == half["kv_bytes"] - half["host_bytes"]
    assert costs["full", "host_bytes"] == 0 and costs["full", "device_bytes"] == costs["full", "kv_bytes"]
    assert ("full", "file_bytes") not in costs, "no strategy has files"


def test_what_decode_steps_fetch_is_on_the_device_of_each_sequence(tmp_path, monkeypatch):
    def fetching(cell, draw):
        yield from measure(cell, draw)
        if cell.strategy.name == "h2o":
            yield Measurement("fetch_device_bytes", 1000.0)

    monkeypatch.setattr(synthetic, "measure", fetching)
    folder = synthetic.write_campaign(tmp_path)
    build_database(folder)
    with open_database(folder) as connection:
        rows = connection.sql("""
            SELECT DISTINCT d.batch_size, a.cost + 1000 * coalesce(d.batch_size, 1) - h.cost - d.cost
            FROM costs d JOIN costs a USING (model, engine_label, device, source, strategy_label, workload_label)
            JOIN costs h USING (model, engine_label, device, source, strategy_label, workload_label)
            WHERE d.cost_metric = 'device_bytes' AND a.cost_metric = 'kv_bytes' AND h.cost_metric = 'host_bytes'
              AND strategy_label LIKE 'h2o%' ORDER BY ALL
        """).fetchall()
    assert rows == [(1, 0.0), (4, 0.0), (None, 0.0)]


def test_guard_rails_say_why(connection):
    rows = connection.sql("SELECT verdict, reason, chance, full_n FROM guard_rails").fetchall()
    assert rows == [("informative", None, 0.05, 24)] * 2
