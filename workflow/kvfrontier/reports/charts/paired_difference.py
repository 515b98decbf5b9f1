"""Differences to a reference on the same items, with what can be told from chance."""

from __future__ import annotations

import altair as alt
import duckdb
import pyarrow as pa

from kvfrontier.analysis.paired import Line, Paired, paired, quality_metrics, references
from kvfrontier.analysis.paired_table import budget, short_names, short_reference, verdict
from kvfrontier.metrics import METRICS
from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._dots import ROW_HEIGHT
from kvfrontier.reports.style import LABEL_LIMIT, PANEL_BREAK, configurations, in_panels

BEYOND_CHANCE = "Beyond chance"
"""The section of the page, which has the same numbers as tables."""
VERDICTS = {"better": "#0072B2", "worse": "#D55E00", "not told apart": "#8a8a8a"}
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("panel", "configuration", "told", "verdict")]
    + [("place", pa.int64()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("difference", "low", "high", "corrected")]
)


def differences(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """A row a strategy and reference, for each metric of right or wrong; no rows for what is equal by construction."""
    metrics = [name for name in quality_metrics(connection) if METRICS[name].kind == "proportion"]
    found = [item for reference in references(connection) for item in paired(connection, reference, metrics)]
    rows = [
        _row(item, line, place)
        for item in found
        for place, line in enumerate(item.lines)
        if line.verdict != "by construction"
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _row(item: Paired, line: Line, place: int) -> dict:
    model = ["MODELLED"] if item.source == "model" else []
    where = " · ".join([item.model, item.engine_label, item.device, *model])
    return {
        "panel": PANEL_BREAK.join([where, f"{item.metric}, against {short_reference(item)}", item.workload_label]),
        "configuration": " ".join(filter(None, (short_names(item)[line.series], budget(line)))),
        "told": line.verdict if line.verdict in VERDICTS else "not told apart",
        "verdict": verdict(item, line),
        "place": place,
        "n": line.n,
        "difference": line.difference,
        "low": line.low,
        "high": line.high,
        "corrected": line.corrected,
    }


@chart(
    "Better or worse on the same questions",
    BEYOND_CHANCE,
    sql=differences,
    missing="No two strategies answered the same items.",
    order=110,
)
def paired_difference(table: pa.Table) -> alt.FacetChart:
    """Share answered right minus that of the reference, on the same items, with 95 % intervals. Grey is what chance
    explains: not equal, only not told apart. Blue and orange are beyond chance, corrected for the lines of a panel."""
    y = alt.Y("configuration:N", title=None, sort=configurations(table), axis=alt.Axis(labelLimit=LABEL_LIMIT))
    x = alt.X("difference:Q", title="difference, share of the items", axis=alt.Axis(format="+.0%", tickCount=6))
    colour = alt.Color(
        "told:N",
        scale=alt.Scale(domain=list(VERDICTS), range=list(VERDICTS.values())),
        legend=alt.Legend(title=None, orient="top"),
    )
    base = alt.Chart()
    zero = base.mark_rule(color="#333333", strokeDash=[4, 3]).encode(x=alt.datum(0))
    bars = base.mark_rule(strokeWidth=2, opacity=0.6).encode(
        x=alt.X("low:Q", title="difference, share of the items"), x2="high:Q", y=y, color=colour
    )
    points = base.mark_point(size=80, filled=True, opacity=1).encode(
        x=x,
        y=y,
        color=colour,
        shape=alt.Shape(
            "told:N", scale=alt.Scale(domain=list(VERDICTS), range=["triangle-right", "triangle-left", "circle"])
        ),
        tooltip=[
            alt.Tooltip("configuration:N", title="strategy"),
            alt.Tooltip("difference:Q", format="+.1%"),
            alt.Tooltip("low:Q", title="interval from", format="+.1%"),
            alt.Tooltip("high:Q", title="to", format="+.1%"),
            alt.Tooltip("n:Q", title="items"),
            alt.Tooltip("corrected:Q", title="p, corrected", format=".2g"),
            alt.Tooltip("verdict:N"),
        ],
    )
    rows = len(configurations(table))
    return in_panels(alt.layer(zero, bars, points), table, height=rows * ROW_HEIGHT)
