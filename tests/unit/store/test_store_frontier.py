"""One implementation of dominance, against the definition."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_guard_rails_say_why(connection):
    rows = connection.sql("SELECT verdict, reason, chance, full_n FROM guard_rails").fetchall()
    assert rows == [("informative", None, 0.05, 24)] * 2
