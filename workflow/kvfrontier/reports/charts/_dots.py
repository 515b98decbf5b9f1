"""A timed metric of every configuration, one panel a batch and context: dots with intervals, labelled at the side."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.style import (
    CONFIGURATION_SQL,
    LABEL_LIMIT,
    PANEL_BREAK,
    PANEL_SQL,
    PLACE_SQL,
    configurations,
    in_panels,
    point_fill,
    series_colour,
    series_shape,
    told_apart,
)

ROW_HEIGHT = 22

SHAPE = "format('batch {}, {:,} tokens in, {:,} out', batch_size, context_tokens, output_tokens)"
SETTING = f"""
  {PANEL_SQL} || '{PANEL_BREAK}' || {told_apart(SHAPE, "batch_size", "context_tokens", "output_tokens")} AS panel,
  without_budget(strategy_label) AS series, strategy_label, source, {CONFIGURATION_SQL} AS configuration,
  {PLACE_SQL} AS place"""
"""SQL columns of `configurations` that every chart of this kind needs."""
BY_SETTING = "source, model, engine_label, device, batch_size, context_tokens, output_tokens, place"


def metric_sql(metric: str) -> str:
    """The pooled speed cells' `metric`, panels in order of batch and context. Bars end at 0: no time is negative."""
    return f"""
        SELECT {SETTING}, n, mean, ci_low, ci_high,
          greatest(0, coalesce(ci_low, mean)) AS bar_low, coalesce(ci_high, mean) AS bar_high
        FROM configurations WHERE metric = '{metric}' AND phase IS NULL AND batch_size IS NOT NULL
        ORDER BY {BY_SETTING}"""


def dots(table: pa.Table, title: str) -> alt.FacetChart:
    """Rows as `metric_sql` returns them, from zero. Hollow dots are modelled, bars are 95 % intervals."""
    y = alt.Y("configuration:N", title=None, sort=configurations(table), axis=alt.Axis(labelLimit=LABEL_LIMIT))
    base, colour = alt.Chart(), series_colour(table)
    axis = alt.Axis(tickCount=6, labelOverlap=True)
    x = alt.X("mean:Q", title=title, scale=alt.Scale(zero=True), axis=axis)
    bars = base.mark_rule(strokeWidth=2, opacity=0.6).encode(
        x=alt.X("bar_low:Q", title=title), x2="bar_high:Q", y=y, color=colour
    )
    points = base.mark_point(size=80, strokeWidth=2, opacity=1, **point_fill(table)).encode(
        x=x,
        y=y,
        color=colour,
        shape=series_shape(table),
        tooltip=[
            alt.Tooltip("strategy_label:N", title="strategy"),
            alt.Tooltip("mean:Q", title=title, format=".4g"),
            alt.Tooltip("ci_low:Q", title="interval from", format=".4g"),
            alt.Tooltip("ci_high:Q", title="to", format=".4g"),
            alt.Tooltip("n:Q", title="repeats"),
        ],
    )
    labels = base.mark_text(align="left", dx=9, dy=-7, fontSize=11).encode(
        x=x, y=y, text=alt.Text("mean:Q", format=".3~r"), color=colour
    )
    rows = len(configurations(table))
    return in_panels(alt.layer(bars, points, labels), table, height=rows * ROW_HEIGHT, x="independent")
