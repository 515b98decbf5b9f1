"""One look for all charts: colours that colour-blind readers can tell apart, one colour and shape a strategy."""

from __future__ import annotations

import json
import math
from itertools import count
from typing import Any

import altair as alt
import pyarrow as pa

# Okabe and Ito; the full cache is always black, so that every chart has the same reference.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#5E4FA2")
HEXAGON = "M0,-1L0.87,-0.5L0.87,0.5L0,1L-0.87,0.5L-0.87,-0.5Z"
SHAPES = ("square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left", HEXAGON)
REFERENCE, REFERENCE_COLOUR, REFERENCE_SHAPE = "full", "#000000", "circle"
PANEL_WIDTH, PANEL_HEIGHT, PANEL_COLUMNS = 420, 280, 2
LONE_PANEL_WIDTH = 640
MOST_PANELS = 12
MOST_CONFIGURATIONS = 40
MOST_POINTS = 400
PANEL_BREAK = " | "
LABEL_LIMIT = 380
"""Pixels of a name beside an axis; longer ones are cut."""

PANEL_PARTS = " · "
PANEL_SQL = f"concat_ws('{PANEL_PARTS}', model, engine_label, device, CASE source WHEN 'model' THEN 'MODELLED' END)"
"""SQL of the first line of a panel's heading, in PANEL_PARTS; the second follows PANEL_BREAK."""
CONFIGURATION_SQL = "concat_ws(' ', without_budget(strategy_label), format('{:g}', budget))"
"""SQL of a short name of a configuration: strategy and budget."""
PLACE_SQL = "dense_rank() OVER (ORDER BY strategy <> 'full', without_budget(strategy_label), budget, strategy_label)"
"""SQL of a configuration's place in a list."""

SERIES_KEY = b"series"
FONT = "DejaVu Sans, Verdana, sans-serif"


def told_apart(shown: str, *axes: str) -> str:
    """SQL of a heading's line: `shown`, and below it the workload's whole label where several share these `axes`."""
    same = f"OVER (PARTITION BY {', '.join(axes)})"
    differs = f"min(workload_label) {same} <> max(workload_label) {same} AND {shown} IS NOT NULL"
    return (
        f"(coalesce({shown}, workload_label) || CASE WHEN {differs} THEN '{PANEL_BREAK}' || workload_label ELSE '' END)"
    )


def context_sql(noun: str) -> str:
    """SQL of `chats of 512 tokens`."""
    return told_apart(f"format('{noun} of {{:,}} tokens', context_tokens)", "workload", "context_tokens")


def inline(table: pa.Table) -> alt.InlineData:
    """The rows as they go into the page: NaN and infinities as null (JSON has none). No limit of rows."""
    return alt.InlineData(values=[{key: _plain(value) for key, value in row.items()} for row in table.to_pylist()])


def readable(table: pa.Table) -> pa.Table:
    """What a page can show: the first MOST_PANELS panels, and in each the first configurations, or points.

    Points that nothing dominates come first. The page says how many rows it leaves to SQL.
    """
    has_names = "configuration" in table.column_names
    names = table["configuration"].to_pylist() if has_names else range(table.num_rows)
    most = MOST_CONFIGURATIONS if has_names else MOST_POINTS
    panels = table["panel"].to_pylist()
    order = range(table.num_rows)
    if "on_frontier" in table.column_names:
        on_frontier = table["on_frontier"].to_pylist()
        order = sorted(order, key=lambda row: not on_frontier[row])
    members: dict[Any, set[Any]] = {panel: set() for panel in list(dict.fromkeys(panels))[:MOST_PANELS]}
    kept = []
    for row in order:
        shown = members.get(panels[row])
        if shown is not None and (len(shown) < most or names[row] in shown):
            shown.add(names[row])
            kept.append(row)
    return table.take(pa.array(sorted(kept), pa.int64()))


def with_series(table: pa.Table, names: list[str]) -> pa.Table:
    """Remember all strategies of the campaign: a colour means the same one in every chart, whichever it lacks."""
    return table.replace_schema_metadata({SERIES_KEY: json.dumps(names)})


def series_names(table: pa.Table) -> list[str]:
    """The strategies of the campaign (without `with_series`: of the table), the full cache first."""
    known = (table.schema.metadata or {}).get(SERIES_KEY)
    names = set(table["series"].to_pylist()) | set(json.loads(known) if known else ())
    return sorted(names, key=lambda name: (name != REFERENCE, name))


def series_colour(table: pa.Table) -> alt.Color:
    """Colour by strategy, with a legend above the chart."""
    scale = alt.Scale(domain=series_names(table), range=_assign(series_names(table), REFERENCE_COLOUR, COLOURS))
    return alt.Color("series:N", scale=scale, legend=_legend(table))


def series_shape(table: pa.Table) -> alt.Shape:
    """Shape by strategy: colour is never the only sign."""
    scale = alt.Scale(domain=series_names(table), range=_assign(series_names(table), REFERENCE_SHAPE, SHAPES, 1))
    return alt.Shape("series:N", scale=scale, legend=_legend(table))


def _assign(names: list[str], reference: str, others: tuple[str, ...], shift: int = 0) -> list[str]:
    """One of `others` for each name, again from the start when they are used up, but `shift` further on: two that
    share a colour then differ in shape."""
    places = count()
    return [reference if name == REFERENCE else others[_place(next(places), len(others), shift)] for name in names]


def _place(number: int, length: int, shift: int) -> int:
    return (number + number // length * shift) % length


def _legend(table: pa.Table) -> alt.Legend:
    present = set(table["series"].to_pylist())
    shown = [name for name in series_names(table) if name in present]
    room = LONE_PANEL_WIDTH // (7 * max(map(len, shown), default=1) + 30)
    return alt.Legend(title=None, orient="top", columns=max(1, min(4, room)), symbolOpacity=1, values=shown)


def point_fill(table: pa.Table) -> dict[str, Any]:
    """Settings of a point mark: filled where measured, hollow where modelled."""
    sources = set(table["source"].to_pylist())
    if sources == {"measured"}:
        return {"filled": True}
    if sources == {"model"}:
        return {"filled": False, "fill": "#ffffff"}
    return {"fill": alt.expr("datum.source == 'model' ? '#ffffff' : scale('color', datum.series)")}


def configurations(table: pa.Table) -> list[str]:
    """The values of `configuration` in order of `place`."""
    places = dict(zip(table["configuration"].to_pylist(), table["place"].to_pylist(), strict=True))
    return sorted(places, key=lambda name: places[name])


def panel_facet(table: pa.Table, width: int = PANEL_WIDTH) -> alt.Facet:
    """Panels in the order of the rows; `panel` holds a bold heading's lines, separated by PANEL_BREAK."""
    header = alt.Header(labelFontWeight="bold", labelLimit=width, labelExpr=f"split(datum.label, '{PANEL_BREAK}')")
    return alt.Facet("panel:N", sort=list(dict.fromkeys(table["panel"].to_pylist())), title=None, header=header)


def panel_width(table: pa.Table) -> int:
    """Pixels of each panel: a lone one is wider."""
    return PANEL_WIDTH if len(set(table["panel"].to_pylist())) > 1 else LONE_PANEL_WIDTH


def in_panels(layers: alt.LayerChart, table: pa.Table, height: int = PANEL_HEIGHT, **resolve: str) -> alt.FacetChart:
    """One panel for each value of `panel`; `resolve` names axes that every panel scales for itself."""
    panels = len(set(table["panel"].to_pylist()))
    width = panel_width(table)
    return (
        layers.properties(width=width, height=height)
        .facet(panel_facet(table, width), columns=min(PANEL_COLUMNS, panels), data=inline(table))
        .resolve_scale(**resolve)
    )


def themed(drawn: alt.TopLevelMixin) -> dict[str, Any]:
    """The chart's Vega-Lite, with the look all charts share."""
    spec = drawn.to_dict()
    spec.setdefault("config", {}).update(
        background="#ffffff",
        font=FONT,
        view={"stroke": "#d0d0d0", "continuousWidth": PANEL_WIDTH, "continuousHeight": PANEL_HEIGHT},
        axis={
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": "#ececec",
            "labelLimit": LABEL_LIMIT,
        },
        legend={"labelFontSize": 12, "titleFontSize": 12, "titleLimit": 320, "labelLimit": 560, "symbolSize": 90},
        header={"labelFontSize": 12, "titleFontSize": 12},
        facet={"spacing": 24},
    )
    return spec


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
