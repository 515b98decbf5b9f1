"""Top-1 agreement with the full cache against KV memory."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._scatter import MIB, log_axis, quality_sql, scatter
from kvfrontier.reports.style import context_sql


@chart(
    "How often the next word stays the same, for how much memory",
    "Frontier",
    sql=quality_sql("'top1_agreement'", "device_bytes", context_sql("documents"), MIB),
    missing="No cell of a fidelity workload is ok yet.",
    order=30,
)
def top1_vs_kv_bytes(table: pa.Table) -> alt.FacetChart:
    """How often the most probable next token is the full cache's, on natural text. Up and to the left is better. Bars
    are 95 % Wilson intervals."""
    y = alt.Y(
        "quality:Q",
        title="same most probable token",
        axis=alt.Axis(format="%"),
        scale=alt.Scale(zero=False, domainMax=1),
    )
    return scatter(table, log_axis("KV cache of one document on the device (MiB)"), y)
