"""KV memory by tier, batch and context."""

from __future__ import annotations

import altair as alt
import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._dots import BY_SETTING, ROW_HEIGHT, SETTING
from kvfrontier.reports.style import configurations, in_panels

TIERS = {
    "keys and values on the device": "#0072B2",
    "keys and values in host memory": "#E69F00",
    "keys and values in a file": "#009E73",
    "bookkeeping": "#999999",
}


@chart(
    "KV memory",
    "Speed and memory",
    sql=f"""
        SELECT {SETTING}, max(mean) / 1048576 AS mib,
          CASE metric WHEN 'kv_device_bytes' THEN 'keys and values on the device'
            WHEN 'kv_host_bytes' THEN 'keys and values in host memory'
            WHEN 'kv_disk_bytes' THEN 'keys and values in a file' ELSE 'bookkeeping' END AS tier
        FROM configurations
        WHERE metric IN ('kv_device_bytes', 'kv_host_bytes', 'kv_disk_bytes', 'kv_aux_bytes')
          AND batch_size IS NOT NULL
        GROUP BY model, engine_label, device, source, workload_label, batch_size, context_tokens, output_tokens,
          strategy, strategy_label, budget, metric
        ORDER BY {BY_SETTING}""",
    missing="No cell of a speed workload is ok yet.",
    order=70,
)
def kv_memory(table: pa.Table) -> alt.FacetChart:
    """Bytes of the cache of the whole batch, at the phase where they are most: exact sizes of its tensors. Bookkeeping
    is what a strategy stores beside keys and values: scores, positions."""
    held = set(table.filter(pc.greater(table["mib"], 0))["tier"].to_pylist())
    tiers = {tier: colour for tier, colour in TIERS.items() if tier in held}
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("mib:Q", title="KV cache of the batch (MiB)", stack="zero", axis=alt.Axis(tickCount=6)),
            y=alt.Y("configuration:N", title=None, sort=configurations(table)),
            color=alt.Color(
                "tier:N",
                scale=alt.Scale(domain=list(tiers), range=list(tiers.values())),
                legend=alt.Legend(title=None, orient="top", columns=2),
            ),
            opacity=alt.condition("datum.source == 'model'", alt.value(0.45), alt.value(1)),
            tooltip=["strategy_label:N", "tier:N", alt.Tooltip("mib:Q", title="MiB", format=".4g")],
        )
    )
    totals = (
        alt.Chart()
        .transform_aggregate(total="sum(mib)", groupby=["panel", "configuration"])
        .mark_text(align="left", dx=4, fontSize=11)
        .encode(
            x="total:Q",
            y=alt.Y("configuration:N", title=None, sort=configurations(table)),
            text=alt.Text("total:Q", format=".3~r"),
        )
    )
    rows = len(configurations(table))
    return in_panels(alt.layer(bars, totals), table, height=rows * ROW_HEIGHT, x="independent")
