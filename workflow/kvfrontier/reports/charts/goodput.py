"""Requests answered in time, by the rate at which they come."""

from __future__ import annotations

import altair as alt
import duckdb
import pyarrow as pa

from kvfrontier.analysis.labels import shorter
from kvfrontier.reports.chart import chart
from kvfrontier.reports.style import PANEL_BREAK, in_panels, point_fill, series_colour, series_shape

SQL = r"""
    SELECT concat_ws(' · ', model, strategy_label, device, CASE source WHEN 'model' THEN 'MODELLED' END) AS heading,
      replace(regexp_replace(workload_label, '\brequest_rate=[^,)]+(, )?', ''), ', )', ')') AS beside_rate,
      engine_label, source, offered, n, mean, ci_low, ci_high, greatest(0, coalesce(ci_low, mean)) AS bar_low,
      coalesce(ci_high, mean) AS bar_high, all_answered
    FROM configurations
    JOIN (SELECT model, engine_label, device, strategy_label, workload_label, source,
            max(mean) FILTER (metric = 'offered_requests_per_s') AS offered,
            max(mean) FILTER (metric = 'requests_per_s') AS all_answered
          FROM configurations WHERE phase IS NULL GROUP BY ALL)
      USING (model, engine_label, device, strategy_label, workload_label, source)
    WHERE metric = 'goodput_requests_per_s' AND phase IS NULL AND offered IS NOT NULL
    ORDER BY source, heading, beside_rate, engine_label, offered"""


def by_rate(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """A line an engine, by what tells it from the others; a panel for all that is the same but for the rate."""
    table = connection.sql(SQL).to_arrow_table()
    engines, settings = (table[name].to_pylist() for name in ("engine_label", "beside_rate"))
    of_engine, of_setting = shorter(dict.fromkeys(engines)), shorter(dict.fromkeys(settings))
    headings = zip(table["heading"].to_pylist(), settings, strict=True)
    panels = [f"{heading}{PANEL_BREAK}{of_setting[setting]}" for heading, setting in headings]
    return table.append_column("panel", pa.array(panels, pa.string())).append_column(
        "series", pa.array([of_engine[engine] for engine in engines], pa.string())
    )


@chart(
    "Requests answered in time",
    "Speed and memory",
    sql=by_rate,
    missing="No cell of the workload arrivals is ok yet.",
    order=65,
)
def goodput(table: pa.Table) -> alt.FacetChart:
    """Requests a second that were answered within both latency limits, by those that came. On the dashed line all of
    them are; where a curve leaves it, the engine is past what it can serve in time. Bars are 95 % t intervals over
    repeats, each with its own arrivals."""
    colour = series_colour(table)
    x = alt.X("offered:Q", title="requests/s that came", scale=alt.Scale(zero=True))
    y = alt.Y("mean:Q", title="requests/s answered in time", scale=alt.Scale(zero=True))
    base = alt.Chart()
    ideal = base.mark_line(strokeDash=[6, 4], strokeWidth=1, color="#808080").encode(x=x, y=alt.Y("offered:Q"))
    lines = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.55).encode(
        x=x, y=alt.Y("bar_low:Q"), y2="bar_high:Q", color=colour
    )
    points = base.mark_point(size=80, opacity=1, **point_fill(table)).encode(
        x=x,
        y=y,
        color=colour,
        shape=series_shape(table),
        tooltip=[
            alt.Tooltip("engine_label:N", title="engine"),
            alt.Tooltip("offered:Q", title="requests/s that came", format=".3g"),
            alt.Tooltip("mean:Q", title="answered in time", format=".3g"),
            alt.Tooltip("ci_low:Q", title="interval from", format=".3g"),
            alt.Tooltip("ci_high:Q", title="to", format=".3g"),
            alt.Tooltip("all_answered:Q", title="answered at all", format=".3g"),
            alt.Tooltip("n:Q", title="repeats"),
        ],
    )
    return in_panels(alt.layer(ideal, lines, bars, points), table)
