"""Quality against a cost: points with intervals, the frontier as a line. Several charts differ only in the two axes."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.style import (
    PANEL_BREAK,
    PANEL_SQL,
    in_panels,
    point_fill,
    series_colour,
    series_names,
    series_shape,
)

MIB = 2**20


def quality_sql(quality_metrics: str, cost_metric: str, panel: str, divisor: int = 1) -> str:
    """Points of the table `frontier`, the cost in units of `divisor`.

    panel: SQL for the second line of a panel's heading.
    """
    return f"""
        SELECT {PANEL_SQL} || '{PANEL_BREAK}' || {panel} AS panel,
          without_budget(strategy_label) AS series, strategy_label,
          coalesce(format('{{:g}}', budget), strategy_label) AS label, source, on_frontier, quality_n AS n,
          quality, quality_low, quality_high, cost / {divisor} AS cost, cost_low / {divisor} AS cost_low,
          coalesce(quality_low, quality) AS bar_low, coalesce(quality_high, quality) AS bar_high,
          greatest(0, coalesce(cost_low, cost)) / {divisor} AS bar_left,
          coalesce(cost_high, cost) / {divisor} AS bar_right
        FROM frontier WHERE quality_metric IN ({quality_metrics}) AND cost_metric = '{cost_metric}'
        ORDER BY source, panel, cost"""


def log_axis(title: str) -> alt.X:
    """A cost that spans powers of ten."""
    axis = alt.Axis(tickCount=5, format="~g", labelOverlap=True)
    return alt.X("cost:Q", title=title, axis=axis, scale=alt.Scale(type="log", nice=False, padding=24))


def scatter(table: pa.Table, x: alt.X, y: alt.Y, more_costs: bool = True) -> alt.FacetChart:
    """Rows as `quality_sql` returns them. Hollow points are modelled, bars are 95 % intervals.

    more_costs: a higher x is worse (bytes); False where it is better (tokens/s).
    """
    table = _with_label_side(table)
    base = alt.Chart()
    colour = series_colour(table)
    front = (
        base.transform_filter("datum.on_frontier")
        .mark_line(strokeWidth=7, opacity=0.28, interpolate="step-after" if more_costs else "step-before")
        .encode(x=x, y=y, order=alt.Order("cost:Q"), color=alt.value("#7f7f7f"))
    )
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.55, clip=True)
    intervals = [bars.encode(x=x, y=alt.Y("bar_low:Q"), y2="bar_high:Q", color=colour)]
    if table["cost_low"].null_count < table.num_rows:
        intervals.append(bars.encode(x=alt.X("bar_left:Q"), x2="bar_right:Q", y=y, color=colour))
    points = base.mark_point(size=95, strokeWidth=2, opacity=1, **point_fill(table)).encode(
        x=x, y=y, color=colour, shape=series_shape(table), tooltip=_tooltip(x, y)
    )
    side = alt.expr("datum.label_above ? -8 : 10")
    labels = base.mark_text(align="left", dx=8, dy=side, fontSize=11).encode(x=x, y=y, color=colour, text="label:N")
    return in_panels(alt.layer(front, *intervals, points, labels), table, x="independent")


def _with_label_side(table: pa.Table) -> pa.Table:
    """Labels of every other strategy go below their points, so that neighbours do not cover each other."""
    names = series_names(table)
    above = [names.index(name) % 2 == 0 for name in table["series"].to_pylist()]
    return table.append_column("label_above", pa.array(above, pa.bool_()))


def _tooltip(x: alt.X, y: alt.Y) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("strategy_label:N", title="strategy"),
        alt.Tooltip("quality:Q", title=y["title"], format=".3g"),
        alt.Tooltip("quality_low:Q", title="interval from", format=".3g"),
        alt.Tooltip("quality_high:Q", title="to", format=".3g"),
        alt.Tooltip("n:Q", title="observations"),
        alt.Tooltip("cost:Q", title=x["title"], format=".4g"),
        alt.Tooltip("on_frontier:N", title="on the frontier"),
    ]
