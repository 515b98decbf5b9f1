"""Agreement with the full cache on lm-eval tasks by budget."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._by_budget import by_budget, by_budget_sql
from kvfrontier.reports.style import told_apart
from kvfrontier.reports.tasks import TASKS


@chart(
    "How many answers stay those of the full cache",
    TASKS,
    sql=by_budget_sql("'full_agreement'", told_apart("task", "workload", "task")),
    missing="No cell of an lm_eval workload is ok yet.",
    order=120,
)
def agreement_by_budget(table: pa.Table) -> alt.FacetChart:
    """Documents with the answer that the full cache gives, right or wrong, with 95 % Wilson intervals: it varies less
    than accuracy does, and shows what a strategy changes even where the model itself only guesses."""
    return by_budget(table, "same answer as the full cache", "documents asked", logarithmic=True)
