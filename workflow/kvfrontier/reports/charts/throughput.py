"""Throughput by batch and context."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._dots import dots, metric_sql


@chart(
    "Output tokens a second",
    "Speed and memory",
    sql=metric_sql("output_tokens_per_s"),
    missing="No cell of a speed workload is ok yet.",
    order=50,
)
def throughput(table: pa.Table) -> alt.FacetChart:
    """Output tokens of the whole batch divided by the time from its submission to its last token; more is better. Bars
    are 95 % t intervals over repeats; each panel has its own scale."""
    return dots(table, "output tokens/s of the batch")
