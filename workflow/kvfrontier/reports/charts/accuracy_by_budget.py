"""Accuracy on lm-eval tasks by budget."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._by_budget import by_budget, by_budget_sql
from kvfrontier.reports.style import told_apart
from kvfrontier.reports.tasks import TASKS


@chart(
    "How accuracy falls with the budget",
    TASKS,
    sql=by_budget_sql("'acc'", told_apart("task", "workload", "task")),
    missing="No cell of an lm_eval workload is ok yet.",
    order=110,
)
def accuracy_by_budget(table: pa.Table) -> alt.FacetChart:
    """Documents of a task answered right (lm-eval's acc), with 95 % Wilson intervals; dashed lines are strategies
    without a budget, the band is the full cache's interval, the thin dotted line guessing: where the band
    reaches down to it, no loss can be shown. Every strategy is asked the same documents: what is beyond chance is told
    by the paired tables, not by intervals."""
    return by_budget(table, "answered right", "documents asked", logarithmic=True, show_guess=True)
