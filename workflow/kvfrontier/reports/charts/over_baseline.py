"""What an engine's strategies cost against another engine that keeps everything: ratios of equal work."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.chart import chart
from kvfrontier.reports.charts._dots import ROW_HEIGHT, SHAPE
from kvfrontier.reports.style import (
    CONFIGURATION_SQL,
    PANEL_BREAK,
    PANEL_SQL,
    PLACE_SQL,
    configurations,
    in_panels,
    point_fill,
    series_colour,
    series_shape,
    told_apart,
)

SQL = f"""
    WITH engines AS (
      SELECT model, device, engine_label, bool_and(strategy = 'full') AS is_full FROM cells GROUP BY ALL
    ), baselines AS (  -- of a model: the engine that runs the full cache alone, beside one that runs more
      SELECT model, device, min(engine_label) FILTER (is_full) AS engine_label FROM engines GROUP BY ALL
      HAVING bool_or(is_full) AND NOT bool_and(is_full)
    ), timed AS (
      SELECT *, {told_apart(SHAPE, "batch_size", "context_tokens", "output_tokens")} AS work,
        {CONFIGURATION_SQL} AS configuration, {PLACE_SQL} AS place, sd / mean / sqrt(n) AS error
      FROM configurations WHERE metric IN ('output_tokens_per_s', 'ttft_s') AND phase IS NULL AND mean > 0
    ), ratios AS (
      SELECT c.*, b.engine_label AS baseline, b.engine AS baseline_engine, ln(c.mean / b.mean) AS ratio,
        least(c.n, b.n) AS fewest, count(*) OVER (PARTITION BY c.source, c.model, c.engine_label) AS works,
        CASE WHEN fewest > 1 THEN t_quantile_975(fewest - 1) * sqrt(c.error ** 2 + b.error ** 2) END AS half_width
      FROM timed c JOIN baselines USING (model, device)
      JOIN timed b ON b.engine_label = baselines.engine_label AND c.engine_label <> b.engine_label
        AND (b.model, b.device, b.source, b.metric) = (c.model, c.device, c.source, c.metric)
        AND b.workload_label = c.workload_label
    )
    SELECT {PANEL_SQL} || '{PANEL_BREAK}'
        || CASE metric WHEN 'ttft_s' THEN 'seconds to first token' ELSE 'output tokens/s' END
        || ', over ' || baseline_engine AS panel,
      without_budget(strategy_label) AS series, configuration, strategy_label, source, baseline, work, fewest AS n,
      dense_rank() OVER (ORDER BY batch_size, context_tokens, output_tokens, work) AS work_place, place,
      exp(ratio) AS times, exp(ratio - half_width) AS ci_low, exp(ratio + half_width) AS ci_high
    FROM ratios ORDER BY source, model, works DESC, engine_label, device, metric, work_place, place"""


@chart(
    "Engines against a baseline",
    "Speed and memory",
    sql=SQL,
    missing="No engine runs the full cache alone beside one that runs other strategies.",
    order=45,
)
def over_baseline(table: pa.Table) -> alt.FacetChart:
    """Each strategy's value over that of the engine that runs the full cache alone (the baseline), for equal work: on
    the dashed line both are the same. Bars are 95 % t intervals of the ratio, from both sides' spread."""
    works = dict(sorted(zip(table["work_place"].to_pylist(), table["work"].to_pylist(), strict=True)))
    y = alt.Y("work:N", title=None, sort=list(works.values()))
    offset = alt.YOffset("configuration:N", sort=configurations(table))
    scale = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("times:Q", title="times the baseline", scale=scale, axis=alt.Axis(format="~g", tickCount=6))
    colour = series_colour(table)
    same = alt.Chart().mark_rule(strokeDash=[4, 4], color="#6b6b6b").encode(x=alt.datum(1))
    bars = alt.Chart().mark_rule(strokeWidth=2, opacity=0.6)
    bars = bars.encode(
        x=alt.X("ci_low:Q", title="times the baseline"), x2="ci_high:Q", y=y, yOffset=offset, color=colour
    )
    points = alt.Chart().mark_point(size=55, strokeWidth=1.5, opacity=1, **point_fill(table)).encode(
        x=x,
        y=y,
        yOffset=offset,
        color=colour,
        shape=series_shape(table),
        tooltip=[
            alt.Tooltip("strategy_label:N", title="strategy"),
            alt.Tooltip("baseline:N", title="baseline"),
            alt.Tooltip("times:Q", title="times the baseline", format=".3g"),
            alt.Tooltip("ci_low:Q", title="interval from", format=".3g"),
            alt.Tooltip("ci_high:Q", title="to", format=".3g"),
            alt.Tooltip("n:Q", title="repeats"),
        ],
    )  # fmt: skip
    rows = len(works) * max(2, len(configurations(table)) * 0.6)
    return in_panels(alt.layer(same, bars, points), table, height=int(rows * ROW_HEIGHT))
