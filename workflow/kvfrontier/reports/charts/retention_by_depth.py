"""Retention by the fact's place in the chat or text."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._tiles import phase_sql, tiles


@chart(
    "Where in the chat facts survive",
    "Retention",
    sql=phase_sql("'retention_correct', 'retention_contained'", "depth="),
    missing="No cell of a retention workload is ok yet.",
    order=90,
)
def retention_by_depth(table: pa.Table) -> alt.FacetChart:
    """Facts answered right, by the place of the fact: 0 is the first turn of the chat, 1 the last before the question
    (of a text with needles: its beginning and its end). Darker is better; n and the interval are in the tooltip."""
    return tiles(table, "place of the fact (0 first, 1 last)", "place of the fact")
