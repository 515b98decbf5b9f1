"""A share of every configuration at each value of one setting: tiles, darker is better, with the number in them."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.charts._dots import ROW_HEIGHT
from kvfrontier.reports.style import (
    CONFIGURATION_SQL,
    PANEL_BREAK,
    PANEL_SQL,
    PLACE_SQL,
    configurations,
    context_sql,
    in_panels,
)


def phase_sql(metrics: str, prefix: str, more: str = "''") -> str:
    """Pooled shares by phase: those that begin with `prefix`, and its number as `setting`.

    metrics: quoted names, comma-separated. more: SQL of what a panel's heading ends with.
    """
    return f"""
        SELECT {PANEL_SQL} || '{PANEL_BREAK}' || {context_sql("chats")} || {more} AS panel,
          strategy_label, {CONFIGURATION_SQL} AS configuration, {PLACE_SQL} AS place,
          phase[{len(prefix) + 1}:]::DOUBLE AS setting, n, mean, ci_low, ci_high
        FROM configurations WHERE metric IN ({metrics}) AND starts_with(phase, '{prefix}')
        ORDER BY source, panel, place, setting"""


def tiles(table: pa.Table, title: str, short: str) -> alt.FacetChart:
    """Rows as `phase_sql` returns them. title: of the axis; short: what it is in a tooltip."""
    base = alt.Chart().encode(
        x=alt.X("setting:O", title=title, axis=alt.Axis(labelAngle=0, format="~g")),
        y=alt.Y("configuration:N", title=None, sort=configurations(table)),
    )
    squares = base.mark_rect(stroke="#ffffff", strokeWidth=2).encode(
        color=alt.Color(
            "mean:Q",
            scale=alt.Scale(domain=[0, 1], scheme="blues"),
            legend=alt.Legend(title="answered right", format="%", orient="top", gradientLength=200),
        ),
        tooltip=[
            alt.Tooltip("strategy_label:N", title="strategy"),
            alt.Tooltip("setting:O", title=short),
            alt.Tooltip("mean:Q", title="answered right", format=".1%"),
            alt.Tooltip("ci_low:Q", title="interval from", format=".1%"),
            alt.Tooltip("ci_high:Q", title="to", format=".1%"),
            alt.Tooltip("n:Q", title="facts asked"),
        ],
    )
    texts = base.mark_text(fontSize=11).encode(
        text=alt.Text("mean:Q", format=".0%"),
        color=alt.condition("datum.mean > 0.55", alt.value("#ffffff"), alt.value("#222222")),
    )
    rows = len(configurations(table))
    return in_panels(squares + texts, table, height=rows * ROW_HEIGHT)
