"""What the page says of lm-eval's tasks: what the full cache can do at all, and where contexts are too short."""

from __future__ import annotations

import duckdb

from kvfrontier.analysis.labels import shorter
from kvfrontier.analysis.table import NONE, TextTable
from kvfrontier.reports.style import PANEL_SQL

TASKS = "Tasks"
"""The section of the page."""

FLOORS_SQL = """
  SELECT model, engine_label, device, source, workload_label,
    arg_min(mean, (strategy <> 'full')::INT) FILTER (metric = 'guess_accuracy') AS guess,
    arg_min(mean, (strategy <> 'full')::INT) FILTER (metric = 'majority_accuracy') AS majority
  FROM configurations WHERE metric IN ('guess_accuracy', 'majority_accuracy') AND phase IS NULL GROUP BY ALL"""
"""SQL of what needs no skill, a row a task with choices: shares in [0, 1]. Cells of the full cache say it first."""

ROUNDING = 1e-9  # the interval of none right ends at 0, or beside it
TO_BE_SHOWN = (
    "Where the full cache cannot be told from guessing, or is below it, no loss of accuracy can be shown; how many "
    "answers stay those of the full cache still can."
)


def full_cache(connection: duckdb.DuckDBPyConnection) -> TextTable:
    """The full cache's scores beside guessing: where it has no skill, a strategy cannot lose any."""
    rows = connection.sql(f"""
        WITH floors AS ({FLOORS_SQL})
        SELECT {PANEL_SQL}, workload_label, metric, n::VARCHAR, guess, majority, mean, ci_low, ci_high
        FROM configurations LEFT JOIN floors USING (model, engine_label, device, source, workload_label)
        WHERE strategy = 'full' AND metric IN ('acc', 'acc_norm', 'exact_match') AND phase IS NULL ORDER BY 1, 2, 3
    """).fetchall()
    short = shorter({row[1] for row in rows})
    lines = [
        [place, short[task], score, documents, _share(guess), _share(majority), _share(mean),
         f"{_share(low)} to {_share(high)}", _verdict(low, high, guess, majority)]
        for place, task, score, documents, guess, majority, mean, low, high in rows
    ]  # fmt: skip
    is_open = any(not line[-1].startswith("above") for line in lines)
    return TextTable(
        (
            "model", "task", "score", "documents", "guessing", "most frequent answer", "full cache", "95 % interval",
            "verdict",
        ),
        lines,
        "No accuracy of the full cache is measured.",
        TO_BE_SHOWN if is_open else "",
    )  # fmt: skip


def _verdict(low: float, high: float, *floors: float | None) -> str:
    """low, high: ends of the interval. floors: shares that need no skill, None where there are no choices."""
    known = [floor for floor in floors if floor is not None]
    what = "guessing" if known else "0"
    if low > max(known, default=0) + ROUNDING:
        return f"above {what}"
    return f"below {what}" if high < min(known, default=0) else f"cannot be told from {what}"


def short_contexts(connection: duckdb.DuckDBPyConnection) -> TextTable:
    """Where contexts of tasks are too short for a budget: nothing is lost, or a quarter more is held than was asked.

    Of strategies that take tokens away alone (others say nothing of `budget_bites`). What those ask for that hold
    tokens outside the device may be what they fetch: of these, only contexts that lost nothing count.
    """
    rows = connection.sql(f"""
        WITH found AS (
          SELECT {PANEL_SQL} AS place, workload_label, without_budget(strategy_label) AS series, budget,
            CASE WHEN budget <= 1 THEN format('at {{:g}}: ', budget)
                 WHEN budget > 1 THEN format('at {{:g}} tokens: ', budget) ELSE '' END AS asked,
            max(n) FILTER (metric = 'budget_bites') AS documents,
            1 - max(mean) FILTER (metric = 'budget_bites') AS untouched,
            max(mean) FILTER (metric = 'context_tokens') AS tokens,
            max(mean) FILTER (metric = 'evicted_tokens') AS evicted,
            max(mean) FILTER (metric = 'effective_budget') AS held,
            coalesce(max(mean) FILTER (metric IN ('kv_host_bytes', 'kv_disk_bytes')), 0) > 0 AS is_outside
          FROM configurations GROUP BY ALL
        )
        SELECT place, workload_label, max(documents)::VARCHAR, coalesce(format('{{:.0f}}', max(tokens)), ''), series,
          coalesce(string_agg(asked || format('{{:.2f}}', held), ', ' ORDER BY budget), ''),
          coalesce(string_agg(asked || format('{{:.0f}} of {{}}', untouched * documents, documents), ', '
            ORDER BY budget) FILTER (untouched > 0), '')
        FROM found
        WHERE untouched > 0 OR (untouched IS NOT NULL AND NOT is_outside AND CASE
          WHEN budget < 1 THEN held > 1.25 * budget WHEN budget > 1 THEN tokens - evicted > 1.25 * budget END)
        GROUP BY ALL ORDER BY place, workload_label, series
    """).fetchall()
    short = shorter({row[1] for row in rows})
    return TextTable(
        ("model", "task", "documents", "mean tokens", "strategy", "share held", "documents that lost nothing"),
        [[place, short[task], *others] for place, task, *others in rows],
        "No context of a task was too short for its budget.",
    )


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"
