"""A proportion by budget, one line a strategy; charts differ in what is counted."""

from __future__ import annotations

import altair as alt
import pyarrow as pa

from kvfrontier.reports.style import (
    PANEL_BREAK,
    PANEL_SQL,
    REFERENCE,
    in_panels,
    point_fill,
    series_colour,
    series_names,
    series_shape,
)
from kvfrontier.reports.tasks import FLOORS_SQL

HAIR = 0.015
GUESS_COLOUR = "#6b6b6b"


def by_budget_sql(metrics: str, panel: str) -> str:
    """Points of `configurations`, shares of the cache as they were asked for, or as achieved where tokens were.

    metrics: a list in SQL. panel: SQL for the second line of a panel's heading.
    `guess`: what guessing gets in tasks with choices.
    """
    return f"""
        WITH achieved AS (
          SELECT model, engine_label, device, strategy_label, workload_label, source, mean AS achieved
          FROM configurations WHERE metric = 'achieved_budget'
        ), floors AS ({FLOORS_SQL}), points AS (
          SELECT *, CASE WHEN budget <= 1 THEN budget WHEN budget > 1 THEN achieved END AS share
          FROM configurations
          LEFT JOIN achieved USING (model, engine_label, device, strategy_label, workload_label, source)
          LEFT JOIN floors USING (model, engine_label, device, source, workload_label)
          WHERE metric IN ({metrics}) AND phase IS NULL
        )
        SELECT {PANEL_SQL} || '{PANEL_BREAK}' || {panel} AS panel,
          without_budget(strategy_label) AS series, strategy_label, source, share, n, mean, ci_low, ci_high, guess,
          min(share) OVER panels AS smallest, max(share) OVER panels AS largest
        FROM points WINDOW panels AS (PARTITION BY model, engine_label, device, workload_label, source)
        ORDER BY source, panel, series, share"""


def by_budget(
    table: pa.Table, title: str, items: str, logarithmic: bool = False, show_guess: bool = False
) -> alt.FacetChart:
    """Rows as `by_budget_sql` returns them, with 95 % Wilson intervals; the band is the full cache's.

    title: of the proportion. items: what n counts. logarithmic: budgets span more than a power of ten.
    show_guess: with a thin line at what guessing gets.
    """
    table = _side_by_side(table)
    shares = sorted({share for share in table["share"].to_pylist() if share is not None})
    y = alt.Y("mean:Q", title=title, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    axis = alt.Axis(values=shares, format="~g", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False, padding=20) if logarithmic else alt.Scale(zero=False, padding=20)
    x = alt.X("x:Q", title="budget (share of the KV cache)", axis=axis, scale=scale)
    colour = series_colour(table)
    swept = alt.Chart().transform_filter("isValid(datum.share)")
    whole = alt.Chart().transform_filter("!isValid(datum.share) && isValid(datum.smallest)")
    of_full = whole.transform_filter(f"datum.series == '{REFERENCE}'")
    band = of_full.mark_rect(opacity=0.10).encode(y=alt.Y("ci_low:Q"), y2="ci_high:Q", color=colour)
    level = whole.mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(y=y, color=colour)
    lines = swept.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    bars = swept.mark_rule(strokeWidth=1.5, opacity=0.55).encode(x=x, y=alt.Y("ci_low:Q"), y2="ci_high:Q", color=colour)
    points = swept.mark_point(size=80, opacity=1, **point_fill(table)).encode(
        x=x,
        y=y,
        color=colour,
        shape=series_shape(table),
        tooltip=[
            alt.Tooltip("strategy_label:N", title="strategy"),
            alt.Tooltip("share:Q", title="budget", format="~g"),
            alt.Tooltip("mean:Q", title=title, format=".1%"),
            alt.Tooltip("ci_low:Q", title="interval from", format=".1%"),
            alt.Tooltip("ci_high:Q", title="to", format=".1%"),
            alt.Tooltip("n:Q", title=items),
        ],
    )
    reference = [band, level] if REFERENCE in table["series"].to_pylist() else []
    guess = [_guess(title)] if show_guess and any(table["guess"].to_pylist()) else []
    return in_panels(alt.layer(*guess, *reference, lines, bars, points), table)


def _guess(title: str) -> alt.Chart:
    """One line a panel, however many rows say it."""
    said = alt.Chart().transform_filter("isValid(datum.guess)")
    return said.mark_rule(strokeDash=[2, 3], strokeWidth=1.2, color=GUESS_COLOUR).encode(
        y=alt.Y("max(guess):Q", title=title),
        tooltip=[alt.Tooltip("max(guess):Q", title="guessing", format=".1%")],
    )


def _side_by_side(table: pa.Table) -> pa.Table:
    """Add `x`: the budget, moved by a hair for each strategy so that intervals do not hide each other."""
    names = [name for name in series_names(table) if name != REFERENCE] + [REFERENCE]
    middle = (len(names) - 2) / 2
    moved = [
        None if share is None else share * (1 + HAIR * (names.index(name) - middle))
        for name, share in zip(table["series"].to_pylist(), table["share"].to_pylist(), strict=True)
    ]
    return table.append_column("x", pa.array(moved, pa.float64()))
