"""Retention against KV memory."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._scatter import MIB, log_axis, quality_sql, scatter
from kvfrontier.reports.style import context_sql


@chart(
    "What is still remembered, for how much memory",
    "Frontier",
    sql=quality_sql("'retention_correct', 'retention_contained'", "device_bytes", context_sql("chats"), MIB),
    missing="No cell of a retention workload is ok yet.",
    order=10,
)
def retention_vs_kv_bytes(table: pa.Table) -> alt.FacetChart:
    """Facts answered right, against the bytes that one conversation takes on the device, a GPU's memory (keys, values,
    the strategy's own bookkeeping, and what decode steps fetch; logarithmic). What lies in host memory or in a file is
    not on this axis: the next chart counts it. Up and to the left is better. Numbers beside points are budgets, bars
    are 95 % Wilson intervals, the grey line joins the points that no other point beats. Points that would hide each
    other stand side by side; a number that has no room is left out (the tooltip has it)."""
    y = alt.Y("quality:Q", title="facts answered right", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    return scatter(table, log_axis("KV cache of one conversation on the device (MiB)"), y)
