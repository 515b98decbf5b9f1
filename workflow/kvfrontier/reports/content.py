"""What the page says beside its charts, as plain tables of text. Escaping is the template's."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import Any, NamedTuple

import duckdb

from kvfrontier.analysis import paired_table
from kvfrontier.analysis.paired import Paired, paired, quality_metrics, references
from kvfrontier.analysis.table import TextTable
from kvfrontier.store.live import stored_totals
from kvfrontier.units import format_seconds

MOST_PAIRED = 24
FAILED = ("error", "oom", "timeout")


class Banner(NamedTuple):
    """Of a campaign that is not finished. `words`: how far it is; `made`: when the page's numbers were taken."""

    title: str
    words: str
    done: int
    cells: int
    made: str


def banner(connection: duckdb.DuckDBPyConnection) -> Banner | None:
    """None where every cell came to something."""
    found = stored_totals(connection)
    if found is None or found.is_finished:
        return None
    made = connection.execute("SELECT strftime(made_at, '%Y-%m-%d %H:%M:%S UTC') FROM build").fetchall()
    title = "Being measured" if found.running else "Not finished"
    return Banner(title, found.words(), found.done, found.cells, made[0][0] if made else "")


def headline(connection: duckdb.DuckDBPyConnection) -> str:
    """What was measured, in one sentence."""
    strategies, budgets, models, engines, devices, workloads = connection.sql("""
        SELECT list(DISTINCT strategy ORDER BY strategy), list(DISTINCT budget ORDER BY budget), list(DISTINCT model),
          list(DISTINCT engine), list(DISTINCT device), list(DISTINCT workload ORDER BY workload) FROM cells
    """).fetchall()[0]
    if not models:
        return "The campaign has no cells."
    known = [f"{budget:g}" for budget in budgets or [] if budget is not None]
    at = f" at budgets {', '.join(known)}" if known else ""
    return (
        f"{_list(strategies)}{at}, on {_list(models)}, with {_list(engines)} on {_list(devices)}; "
        f"workloads: {_list(workloads)}."
    )


class PairedTables(NamedTuple):
    """shown: as the page's template reads them, each workload's together. left_out: how many more there are."""

    shown: list[dict[str, Any]]
    left_out: int


def paired_tables(connection: duckdb.DuckDBPyConnection) -> PairedTables:
    """Each strategy against those the campaign names, on the same items; of a workload, right or wrong comes first."""
    metrics = quality_metrics(connection)
    found = [item for reference in references(connection) for item in paired(connection, reference, metrics)]
    shown = [
        {
            "heading": paired_table.heading(item),
            "workload": item.workload_label,
            "meaning": paired_table.meaning(item),
            "table": paired_table.table(item, item.lines, by_phase=True),
            "is_share": item.is_share,
        }
        for item in _those_shown(found)
    ]
    return PairedTables(shown, len(found) - len(shown))


def _those_shown(found: list[Paired]) -> list[Paired]:
    """At most MOST_PAIRED: of every workload the first metric of right or wrong and the first other one, then of every
    workload the second ones. The others see smaller differences (margins, say): a cut must not take them all."""
    settings: dict[tuple[str, ...], int] = {}
    members: Counter[tuple[int, bool]] = Counter()
    keys = []
    for item in found:
        key = (item.reference, item.model, item.engine_label, item.device, item.source, item.workload_label)
        setting = settings.setdefault(key, len(settings))
        keys.append((members[setting, item.is_share], setting, not item.is_share))
        members[setting, item.is_share] += 1
    chosen = sorted(zip(keys, found, strict=True), key=itemgetter(0))[:MOST_PAIRED]
    return [item for _, item in sorted(chosen, key=lambda one: (*one[0][1:], one[0][0]))]


def failures(connection: duckdb.DuckDBPyConnection) -> TextTable:
    """Cells without a measurement, by status and reason."""
    rows = connection.sql("""
        SELECT status, count(*) AS cells, coalesce(reason, CASE status WHEN 'planned' THEN 'not run yet' ELSE '' END),
          coalesce(reason_phase, ''), list(DISTINCT strategy ORDER BY strategy),
          list(DISTINCT workload ORDER BY workload)
        FROM cells WHERE status <> 'ok' GROUP BY ALL ORDER BY cells DESC, status, 3
    """).fetchall()
    return TextTable(
        ("status", "cells", "reason", "phase", "strategies", "workloads"),
        [
            [status, str(count), reason, phase, _list(strategies), _list(workloads)]
            for status, count, reason, phase, strategies, workloads in rows
        ],
        "Every planned cell was measured.",
    )


def guard_rails(connection: duckdb.DuckDBPyConnection) -> TextTable:
    """May the retention figures be believed?"""
    rows = connection.sql("""
        SELECT model, engine_label, device, context_tokens, full_correct, no_context_correct, chance,
          recent_only_correct, verdict || coalesce(': ' || reason, '') FROM guard_rails ORDER BY ALL
    """).fetchall()
    return TextTable(
        (
            "model",
            "engine",
            "device",
            "context",
            "full cache",
            "question alone",
            "chance",
            "last tokens alone",
            "verdict",
        ),
        [[*row[:3], f"{row[3]:,}" if row[3] else "", *(_share(value) for value in row[4:8]), row[8]] for row in rows],
        "No retention was measured.",
    )


def provenance(connection: duckdb.DuckDBPyConnection) -> TextTable:
    """Machines, code and packages behind the numbers; every value that occurs."""
    values = connection.sql("""
        SELECT entry.key, list(DISTINCT entry.value ORDER BY entry.value)
        FROM (SELECT unnest(map_entries(provenance)) AS entry FROM cells
              UNION ALL SELECT unnest(map_entries(packages)) FROM cells)
        WHERE entry.key NOT IN ('load_average', 'concurrent_cells') GROUP BY ALL ORDER BY ALL
    """).fetchall()
    known = {key for key, _ in values}
    rows = [
        [key.replace("_", " "), _list(found)]
        for key, found in values
        if key.removeprefix("package:") not in known - {key}
    ]
    started, ended, busy_s = connection.sql("""
        SELECT min(started_at), max(started_at + to_microseconds(CAST(1e6 * coalesce(wall_s, 0) AS BIGINT))),
          sum(wall_s)
        FROM cells WHERE status NOT IN ('planned', 'unsupported', 'infeasible')
    """).fetchall()[0]
    if started:
        rows += [["measured between", f"{started:%Y-%m-%d %H:%M} and {ended:%Y-%m-%d %H:%M} UTC"]]
        rows += [["time in cells", format_seconds(busy_s or 0)]]
    loads = connection.sql("""
        SELECT min(load), max(load) FROM (SELECT TRY_CAST(provenance['load_average'] AS DOUBLE) AS load FROM cells)
    """).fetchall()[0]
    if loads[0] is not None:
        rows += [
            ["load average", f"{loads[0]:g} to {loads[1]:g} as cells started (far above the cores: timings are off)"]
        ]
    return TextTable(("fact", "value"), rows, "Nothing is measured yet.")


def damaged_files(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Row files that the store could not read."""
    return [name for (name,) in connection.sql("SELECT file FROM damaged_files ORDER BY ALL").fetchall()]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _list(values: list[str], most: int = 12) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(values[:most]) + more
