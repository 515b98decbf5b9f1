"""Retention against KV memory in all tiers together."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._scatter import MIB, log_axis, quality_sql, scatter
from kvfrontier.reports.style import context_sql

OUTSIDE = "SELECT 1 FROM costs WHERE cost_metric IN ('host_bytes', 'file_bytes')"


@chart(
    "The same, with all memory counted",
    "Frontier",
    sql=f"""
        FROM ({quality_sql("'retention_correct', 'retention_contained'", "kv_bytes", context_sql("chats"), MIB)})
        WHERE EXISTS ({OUTSIDE})""",
    missing="Everything lies on the device, or no cell of a retention workload is ok yet: see the chart above.",
    order=15,
)
def retention_vs_all_kv_bytes(table: pa.Table) -> alt.FacetChart:
    """Facts answered right, against the bytes of one conversation wherever they lie: on the device, in host memory and
    in files. A strategy that only moves tokens saves nothing here."""
    y = alt.Y("quality:Q", title="facts answered right", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    return scatter(table, log_axis("KV cache of one conversation, all tiers (MiB)"), y)
