"""What a chart is: one function in one file under `charts/`, and the SQL of its data. Found by file name."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import altair as alt
import duckdb
import pyarrow as pa

PACKAGE = "kvfrontier.reports.charts"


Data = str | Callable[[duckdb.DuckDBPyConnection], pa.Table]


@dataclass(frozen=True)
class Chart:
    """One figure of the report.

    name: the file's, and the figure's file name. category: the section of the page. order: place within the section.
    data: asks the published database, as SQL or as a function; its answer is what `draw` gets. missing: said where that
    is empty.
    """

    name: str
    title: str
    category: str
    caption: str
    data: Data
    missing: str
    order: int
    draw: Callable[[pa.Table], alt.TopLevelMixin]


_CHARTS: dict[str, Chart] = {}


def chart(title: str, category: str, *, sql: Data, missing: str, order: int = 50) -> Callable[[Callable], Callable]:
    """Decorator of the function in `charts/<name>.py` that draws figure `<name>`; its docstring is the caption."""

    def add(draw: Callable[[pa.Table], alt.TopLevelMixin]) -> Callable:
        name = draw.__module__.rpartition(".")[2]
        caption = " ".join((draw.__doc__ or "").split())
        _CHARTS[name] = Chart(name, title, category, caption, sql, missing, order, draw)
        return draw

    return add


@cache
def charts() -> tuple[Chart, ...]:
    """All charts, in the order of the page."""
    folder = find_spec(PACKAGE).submodule_search_locations
    names = [module.name for module in pkgutil.iter_modules(folder) if not module.name.startswith("_")]
    for name in names:
        import_module(f"{PACKAGE}.{name}")
    return tuple(sorted((_CHARTS[name] for name in names), key=lambda found: (found.order, found.name)))


def data_of(found: Chart, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """The chart's data, as it asks for them."""
    return found.data(connection) if callable(found.data) else connection.sql(found.data).to_arrow_table()
