"""Retention by the fact's place in the chat."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
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


@chart(
    "Where in the chat facts survive",
    "Retention",
    sql=f"""
        SELECT {PANEL_SQL} || '{PANEL_BREAK}' || {context_sql("chats")} AS panel,
          strategy_label, {CONFIGURATION_SQL} AS configuration, {PLACE_SQL} AS place,
          phase[7:]::DOUBLE AS depth, n, mean, ci_low, ci_high
        FROM configurations
        WHERE metric IN ('retention_correct', 'retention_contained') AND starts_with(phase, 'depth=')
        ORDER BY source, panel, place, depth""",
    missing="No cell of a retention workload is ok yet.",
    order=90,
)
def retention_by_depth(table: pa.Table) -> alt.FacetChart:
    """Facts answered right, by the place of the fact: 0 is the first turn of the chat, 1 the last before the question.
    Darker is better; n and the interval are in the tooltip."""
    base = alt.Chart().encode(
        x=alt.X("depth:O", title="place of the fact (0 first turn, 1 last)", axis=alt.Axis(labelAngle=0, format="~g")),
        y=alt.Y("configuration:N", title=None, sort=configurations(table)),
    )
    tiles = base.mark_rect(stroke="#ffffff", strokeWidth=2).encode(
        color=alt.Color(
            "mean:Q",
            scale=alt.Scale(domain=[0, 1], scheme="blues"),
            legend=alt.Legend(title="answered right", format="%", orient="top", gradientLength=200),
        ),
        tooltip=[
            alt.Tooltip("strategy_label:N", title="strategy"),
            alt.Tooltip("depth:O", title="place of the fact"),
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
    return in_panels(tiles + texts, table, height=rows * ROW_HEIGHT)
