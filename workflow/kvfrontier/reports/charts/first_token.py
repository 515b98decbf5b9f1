"""Time to first token by batch and context."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._dots import dots, metric_sql


@chart(
    "Time to the first token",
    "Speed and memory",
    sql=metric_sql("ttft_s"),
    missing="No cell of a speed workload is ok yet.",
    order=60,
)
def first_token(table: pa.Table) -> alt.FacetChart:
    """From the submission of a request to its first output token, mean over the batch; less is better. Bars are 95 %
    t intervals over repeats; each panel has its own scale."""
    return dots(table, "seconds to first token")
