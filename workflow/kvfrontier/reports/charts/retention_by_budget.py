"""Retention by budget."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._by_budget import by_budget, by_budget_sql
from kvfrontier.reports.style import context_sql


@chart(
    "How retention falls with the budget",
    "Retention",
    sql=by_budget_sql("'retention_correct', 'retention_contained'", context_sql("chats")),
    missing="No cell of a retention workload is ok yet.",
    order=80,
)
def retention_by_budget(table: pa.Table) -> alt.FacetChart:
    """Facts answered right, all depths together, with 95 % Wilson intervals; points of one budget stand side by side.
    Dashed lines are strategies without a budget, the band is the full cache's interval."""
    return by_budget(table, "facts answered right", "facts asked")
