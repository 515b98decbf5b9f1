"""A chart as Vega-Lite, SVG and PNG; nothing is loaded from a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import vl_convert

from kvfrontier.analysis.labels import shorter
from kvfrontier.errors import printable
from kvfrontier.reports.chart import Chart, charts, data_of
from kvfrontier.reports.style import PANEL_BREAK, PANEL_PARTS, readable, themed, with_series
from kvfrontier.store.files import write_atomically

PNG_SCALE = 2
NAMED = ("series", "configuration", "label", "panel")
_SERIES = "SELECT DISTINCT without_budget(strategy_label) FROM cells"
_ENGINES = "SELECT DISTINCT engine_label FROM cells"


@dataclass(frozen=True)
class Figure:
    """A chart with its data in it; spec None: there is no data, and `chart.missing` says why.

    left_out: rows of the data that a page cannot show.
    """

    chart: Chart
    spec: dict[str, Any] | None
    left_out: int = 0


def draw_all(connection: duckdb.DuckDBPyConnection) -> list[Figure]:
    """Every chart over the published database, in the order of the page."""
    figures = []
    short, engines = (
        shorter(printable(name) for (name,) in connection.sql(sql).fetchall()) for sql in (_SERIES, _ENGINES)
    )
    names = list(short.values())
    for found in charts():
        table = _as_text(data_of(found, connection))
        shown = with_series(_shortened(readable(table), short, engines), names)
        spec = themed(found.draw(shown)) if table.num_rows else None
        figures.append(Figure(found, spec, table.num_rows - shown.num_rows))
    return figures


def _as_text(table: pa.Table) -> pa.Table:
    """Without control characters: no XML may hold them, and the converter to pictures ends this process over one."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = [None if text is None else printable(text) for text in table.column(place).to_pylist()]
            table = table.set_column(place, field, pa.array(texts, field.type))
    return table


def _shortened(table: pa.Table, short: dict[str, str], engines: dict[str, str]) -> pa.Table:
    """Names of strategies, alone or before a budget, as the legend has them; in a heading they are the first line, and
    those of engines a part of it."""

    def of(text: str | None) -> str | None:
        if text is None:
            return None
        first, line_break, rest = text.partition(PANEL_BREAK)
        name, space, budget = first.rpartition(" ")
        if first in short:
            return short[first] + line_break + rest
        if name in short:
            return short[name] + space + budget + line_break + rest
        return PANEL_PARTS.join(engines.get(part, part) for part in first.split(PANEL_PARTS)) + line_break + rest

    for place, field in enumerate(table.schema):
        if field.name in NAMED:
            texts = [of(text) for text in table.column(place).to_pylist()]
            table = table.set_column(place, field, pa.array(texts, field.type))
    return table


def export(figure: Figure, folder: Path) -> None:
    """Write `<name>.svg` and `<name>.png`; a figure without data leaves none behind."""
    svg, png = folder / f"{figure.chart.name}.svg", folder / f"{figure.chart.name}.png"
    if figure.spec is None:
        svg.unlink(missing_ok=True)
        png.unlink(missing_ok=True)
        return
    # allowed_base_urls=[]: a spec that names an address is refused instead of fetched.
    picture = vl_convert.vegalite_to_svg(figure.spec, allowed_base_urls=[])
    write_atomically(svg, picture.encode())
    write_atomically(png, vl_convert.svg_to_png(picture, scale=PNG_SCALE))
