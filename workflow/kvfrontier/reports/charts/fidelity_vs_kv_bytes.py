"""Divergence from the full cache against KV memory."""

from __future__ import annotations

import altair as alt
import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._scatter import MIB, log_axis, quality_sql, scatter
from kvfrontier.reports.style import context_sql


@chart(
    "How far the model's words move, for how much memory",
    "Frontier",
    sql=quality_sql("'kl_divergence'", "device_bytes", context_sql("documents"), MIB),
    missing="No cell of a fidelity workload is ok yet.",
    order=20,
)
def fidelity_vs_kv_bytes(table: pa.Table) -> alt.FacetChart:
    """Kullback-Leibler divergence of next-token distributions from the full cache's on natural text; the full cache
    itself is 0. Down and to the left is better. Bars are 95 % t intervals over documents; of few documents they
    reach beyond the panel. The axis is stretched toward 0."""
    top = 1.25 * (pc.max(table["quality"]).as_py() or 1)
    scale = alt.Scale(type="sqrt", domain=[0, top], nice=False)
    return scatter(
        table,
        log_axis("KV cache of one document on the device (MiB)"),
        alt.Y("quality:Q", title="divergence from the full cache (nat)", scale=scale),
    )
