"""Survival of a fact's tokens by layer and head."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.style import CONFIGURATION_SQL, PANEL_BREAK, context_sql, inline, panel_facet

TILE, WIDTH = 9, 260


@chart(
    "Which layers and heads still hold the fact",
    "Retention",
    sql=f"""
        SELECT concat_ws('{PANEL_BREAK}', {CONFIGURATION_SQL}, concat_ws(' · ', model, device),
            {context_sql("chats")}) AS panel,
          layer, head, avg(value) AS survival, count(*) AS n
        FROM measurements JOIN cells USING (cell_id)
        WHERE metric = 'fact_survival' AND status = 'ok' AND strategy <> 'full'
        GROUP BY model, engine_label, device, workload, workload_label, context_tokens, strategy, strategy_label,
          budget, layer, head
        ORDER BY model, engine_label, device, context_tokens, workload_label, strategy,
          without_budget(strategy_label), budget, layer, head""",
    missing="No cell of a retention workload with a strategy that evicts is ok yet.",
    order=100,
)
def fact_survival(table: pa.Table) -> alt.FacetChart:
    """Share of the fact's own tokens that are still in the cache when the question comes, by layer (down) and KV head
    (across). A fact that survives nowhere cannot be answered; one that survives and is not answered was kept but not
    used."""
    layers = max(table["layer"].to_pylist()) + 1
    panels = len(set(table["panel"].to_pylist()))
    return (
        alt.Chart(inline(table))
        .mark_rect()
        .encode(
            x=alt.X("head:O", title="KV head", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("layer:O", title="layer", axis=alt.Axis(values=list(range(0, layers, 5 if layers > 12 else 1)))),
            color=alt.Color(
                "survival:Q",
                scale=alt.Scale(domain=[0, 1], scheme="viridis"),
                legend=alt.Legend(title="tokens of the fact still kept", format="%", orient="top", gradientLength=200),
            ),
            tooltip=[
                "layer:O",
                "head:O",
                alt.Tooltip("survival:Q", title="still kept", format=".1%"),
                alt.Tooltip("n:Q", title="facts"),
            ],
        )
        .properties(width=WIDTH, height=max(60, layers * TILE))
        .facet(panel_facet(table, WIDTH), columns=min(3, panels))
    )
