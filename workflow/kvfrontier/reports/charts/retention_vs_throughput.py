"""Retention against throughput."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._scatter import PADDING, quality_sql, scatter
from kvfrontier.reports.style import PANEL_BREAK, context_sql

SPEED = "format('speed at batch {}, {:,} + {:,} tokens', cost_batch_size, cost_context_tokens, cost_output_tokens)"
PANEL = f"{context_sql('chats')} || '{PANEL_BREAK}' || {SPEED}"


@chart(
    "What is still remembered, at which speed",
    "Frontier",
    sql=quality_sql("'retention_correct', 'retention_contained'", "output_tokens_per_s", PANEL),
    missing="No strategy has both a retention and a speed cell that is ok yet.",
    order=40,
)
def retention_vs_throughput(table: pa.Table) -> alt.FacetChart:
    """Facts answered right, against output tokens a second of the same strategy's speed cells. Up and to the right is
    better. Bars are 95 % intervals in both directions."""
    y = alt.Y("quality:Q", title="facts answered right", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    x = alt.X("shown_cost:Q", title="output tokens/s of the batch", scale=alt.Scale(zero=False, padding=PADDING))
    return scatter(table, x, y, more_costs=False)
