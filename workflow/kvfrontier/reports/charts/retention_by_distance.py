"""Retention by the turns between a fact and its question."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._tiles import phase_sql, tiles
from kvfrontier.reports.style import PANEL_BREAK

SECOND = f"CASE metric WHEN 'second_question_correct' THEN '{PANEL_BREAK}second question on one cache' ELSE '' END"


@chart(
    "How long facts survive in a chat that goes on",
    "Retention",
    sql=phase_sql("'retention_correct', 'retention_contained', 'second_question_correct'", "distance=", SECOND),
    missing="No cell of the workload multi_turn is ok yet.",
    order=95,
)
def retention_by_distance(table: pa.Table) -> alt.FacetChart:
    """Facts answered right, by the turns between the fact and the question, on a cache that is compressed after each of
    them. Panels with a second question: the same facts, asked for after another one was, on the same cache. Darker is
    better; n and the interval are in the tooltip."""
    return tiles(table, "turns from the fact to the question", "turns since")
