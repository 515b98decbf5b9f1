"""Quality against a cost: points with intervals, the frontier as a line. Several charts differ only in the two axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import altair as alt
import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.reports.placing import Mark, label_places, side_by_side
from kvfrontier.reports.style import (
    PANEL_BREAK,
    PANEL_HEIGHT,
    PANEL_SQL,
    in_panels,
    panel_width,
    point_fill,
    series_colour,
    series_shape,
)

MIB = 2**20
PADDING = 24
"""Pixels between the first and last point and the panel's sides."""
LABEL = ("label_dx", "label_dy", "label_align")


def quality_sql(quality_metrics: str, cost_metric: str, panel: str, divisor: int = 1) -> str:
    """Points of the table `frontier`, the cost in units of `divisor`.

    panel: SQL for the second line of a panel's heading.
    """
    return f"""
        SELECT {PANEL_SQL} || '{PANEL_BREAK}' || {panel} AS panel,
          without_budget(strategy_label) AS series, strategy_label,
          coalesce(format('{{:g}}', budget), strategy_label) AS label, source, on_frontier, quality_n AS n,
          quality, quality_low, quality_high, cost / {divisor} AS cost, cost_low / {divisor} AS cost_low,
          coalesce(quality_low, quality) AS bar_low, coalesce(quality_high, quality) AS bar_high,
          greatest(0, coalesce(cost_low, cost)) / {divisor} AS bar_left,
          coalesce(cost_high, cost) / {divisor} AS bar_right
        FROM frontier WHERE quality_metric IN ({quality_metrics}) AND cost_metric = '{cost_metric}'
        ORDER BY source, panel, cost"""


def log_axis(title: str) -> alt.X:
    """A cost that spans powers of ten."""
    axis = alt.Axis(tickCount=5, format="~g", labelOverlap=True)
    return alt.X("shown_cost:Q", title=title, axis=axis, scale=alt.Scale(type="log", nice=False, padding=PADDING))


def scatter(table: pa.Table, x: alt.X, y: alt.Y, more_costs: bool = True) -> alt.FacetChart:
    """Rows as `quality_sql` returns them. Hollow points are modelled, bars are 95 % intervals.

    more_costs: a higher x is worse (bytes); False where it is better (tokens/s).
    """
    table = _placed(table, x, y)
    base = alt.Chart()
    colour = series_colour(table)
    front = (
        base.transform_filter("datum.on_frontier")
        .mark_line(strokeWidth=7, opacity=0.28, interpolate="step-after" if more_costs else "step-before")
        .encode(x=x, y=y, order=alt.Order("shown_cost:Q"), color=alt.value("#7f7f7f"))
    )
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.55, clip=True)
    intervals = [bars.encode(x=x, y=alt.Y("bar_low:Q"), y2="bar_high:Q", color=colour)]
    if table["cost_low"].null_count < table.num_rows:
        intervals.append(bars.encode(x=alt.X("bar_left:Q"), x2="bar_right:Q", y=y, color=colour))
    points = base.mark_point(size=95, strokeWidth=2, opacity=1, **point_fill(table)).encode(
        x=x, y=y, color=colour, shape=series_shape(table), tooltip=_tooltip(x, y)
    )
    texts = base.transform_filter("isValid(datum.label_align)").encode(x=x, y=y, color=colour, text="label:N")
    place = {"dx": alt.expr("datum.label_dx"), "dy": alt.expr("datum.label_dy"), "align": alt.expr("datum.label_align")}
    labels = texts.mark_text(fontSize=11, baseline="middle", **place)
    return in_panels(alt.layer(front, *intervals, points, labels), table, x="independent")


def _type(channel: alt.X | alt.Y) -> str | None:
    """`log` or `sqrt`, where the channel's scale says so."""
    kind = channel["scale"]["type"]
    return kind if isinstance(kind, str) else None


def _domain(table: pa.Table, y: alt.Y) -> tuple[float, float]:
    """The values at the bottom and the top of the panel, as far as they are known before it is drawn."""
    domain = y["scale"]["domain"]
    if isinstance(domain, list):
        return domain[0], domain[1]
    lows, highs = (pc.min_max(table[name]).as_py() for name in ("bar_low", "bar_high"))
    return lows["min"], highs["max"]


def _placed(table: pa.Table, x: alt.X, y: alt.Y) -> pa.Table:
    """Add `shown_cost`, where a point is drawn, and `label_dx`, `label_dy`, `label_align` (null: there is no room)."""
    rows, domain, is_log = table.to_pylist(), _domain(table, y), _type(x) == "log"
    bend = (lambda value: math.sqrt(max(0.0, value))) if _type(y) == "sqrt" else float
    panels: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        panels.setdefault(row["panel"], []).append(index)
    width = panel_width(table)
    for members in panels.values():
        of = [(math.log if is_log else float)(rows[index]["cost"] or 1) for index in members]
        least, unit = min(of), (max(of) - min(of) or 1) / (width - 2 * PADDING)
        drawn = [PADDING + (at - least) / unit for at in of]
        marks = [_mark(rows[index], at, domain, bend) for index, at in zip(members, drawn, strict=True)]
        xs = side_by_side(marks)
        points = [(x, mark.y) for x, mark in zip(xs, marks, strict=True)]
        places = label_places(points, [rows[index]["label"] for index in members], width, PANEL_HEIGHT)
        for index, x, place in zip(members, xs, places, strict=True):
            at = least + (x - PADDING) * unit
            rows[index]["shown_cost"] = math.exp(at) if is_log else at
            rows[index] |= dict(zip(LABEL, place or (None, None, None), strict=True))
    numbers = [pa.array([row[name] for row in rows], pa.float64()) for name in ("shown_cost", *LABEL[:2])]
    for name, column in zip(("shown_cost", *LABEL[:2]), numbers, strict=True):
        table = table.append_column(name, column)
    return table.append_column(LABEL[2], pa.array([row[LABEL[2]] for row in rows], pa.string()))


def _mark(row: dict[str, Any], x: float, domain: tuple[float, float], bend: Callable[[float], float]) -> Mark:
    low, high = map(bend, domain)
    unit = PANEL_HEIGHT / ((high - low) or 1)
    y, top, bottom = ((high - bend(row[name] or 0)) * unit for name in ("quality", "bar_high", "bar_low"))
    return Mark(x, y, max(0.0, top), min(float(PANEL_HEIGHT), bottom))


def _tooltip(x: alt.X, y: alt.Y) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("strategy_label:N", title="strategy"),
        alt.Tooltip("quality:Q", title=y["title"], format=".3g"),
        alt.Tooltip("quality_low:Q", title="interval from", format=".3g"),
        alt.Tooltip("quality_high:Q", title="to", format=".3g"),
        alt.Tooltip("n:Q", title="observations"),
        alt.Tooltip("cost:Q", title=x["title"], format=".4g"),
        alt.Tooltip("on_frontier:N", title="on the frontier"),
    ]
