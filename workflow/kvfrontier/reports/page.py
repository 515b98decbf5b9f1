"""The report: one HTML file that holds its charts, its data and all of its scripts."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvfrontier.analysis.choice import hints
from kvfrontier.analysis.frontier import Group, compare, count_by_status
from kvfrontier.analysis.paired_table import HOW_TO_READ
from kvfrontier.analysis.side_by_side import side_by_side
from kvfrontier.analysis.table import BYTES_COUNTED, choice_table, remarks, settings, tiers_table, title
from kvfrontier.reports import content, tasks
from kvfrontier.reports.charts.paired_difference import BEYOND_CHANCE
from kvfrontier.reports.figures import Figure, draw_all, export
from kvfrontier.store.files import write_atomically
from kvfrontier.store.live import open_current
from kvfrontier.store.progress import Estimator
from kvfrontier.store.query import open_database


def write_report(campaign_dir: Path) -> Path:
    """Write `report.html` and `figures/` from the published database; returns the page's path."""
    with open_database(campaign_dir) as connection:
        figures = draw_all(connection)
        page = _page(campaign_dir.name, connection, figures, content.banner(connection), has_files=True)
    for figure in figures:
        export(figure, campaign_dir / "figures")
    return write_atomically(campaign_dir / "report.html", page.encode())


def write_live_report(campaign_dir: Path, path: Path, estimate: Estimator | None = None) -> Path:
    """Write the page alone, from the rows there are now, to `path`; it says how far the campaign is."""
    with open_current(campaign_dir, estimate) as current:
        connection = current.connection
        page = _page(campaign_dir.name, connection, draw_all(connection), content.banner(connection), has_files=False)
    return write_atomically(path, page.encode())


def _page(
    campaign: str,
    connection: duckdb.DuckDBPyConnection,
    figures: list[Figure],
    banner: content.Banner | None,
    has_files: bool,
) -> str:
    return render(
        campaign=campaign,
        banner=banner,
        has_files=has_files,
        figures=figures,
        groups=compare(connection),
        comparisons=side_by_side(connection),
        counts=count_by_status(connection),
        headline=content.headline(connection),
        paired=content.paired_tables(connection),
        how_to_read=HOW_TO_READ,
        bytes_counted=BYTES_COUNTED,
        beyond_chance=BEYOND_CHANCE,
        rails=content.guard_rails(connection),
        tasks=tasks.TASKS,
        full_cache=tasks.full_cache(connection),
        short_contexts=tasks.short_contexts(connection),
        failures=content.failures(connection),
        provenance=content.provenance(connection),
        damaged=content.damaged_files(connection),
    )


def render(figures: list[Figure], groups: list[Group], **parts: Any) -> str:
    """The page. Everything in it is escaped: names and reasons come from files and exceptions."""
    categories = [
        {"name": name, "anchor": re.sub(r"\W+", "-", name.lower()), "figures": list(members)}
        for name, members in groupby(figures, key=lambda figure: figure.chart.category)
    ]
    specs = {figure.chart.name: figure.spec for figure in figures if figure.spec}
    environment = Environment(
        loader=PackageLoader("kvfrontier.reports", "."), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html").render(
        **parts,
        categories=categories,
        groups=[_shown(group) for group in groups],
        modelled=any(group.source == "model" for group in groups),
        failed=content.FAILED,
        specs=script_json(specs) if specs else "",
        bundle=_bundle() if specs else "",
    )


def script_json(value: Any) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e"))


def _shown(group: Group) -> dict[str, Any]:
    return {
        "title": title(group),
        "settings": settings(group),
        "warning": group.verdict["reason"] if group.is_uninformative else "",
        "table": choice_table(group),
        "tiers": tiers_table(group),
        "remarks": remarks(group),
        "hints": hints(group),
    }


@cache
def _bundle() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script, out of the installed package."""
    return Markup(vl_convert.javascript_bundle().replace("</script", r"<\/script").replace("<!--", r"<\!--"))
