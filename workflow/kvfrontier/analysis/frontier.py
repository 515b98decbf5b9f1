"""The frontier as people read it: one compact table for each model, engine and device, and what to choose.

Dominance itself is the SQL macro `is_on_frontier` (store/views.sql), so every query sees the same frontier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import duckdb

from kvfrontier.analysis.exact import exactness, readings
from kvfrontier.metrics import FULL_AGREEMENT, RETENTION_CORRECT

Row = dict[str, Any]
READ = (("retention", "retention", RETENTION_CORRECT), ("as_full", "tasks", FULL_AGREEMENT))
"""Column of a row, its purpose and metric: qualities that may have been asked without a decode step."""


@dataclass(frozen=True)
class Group:
    """Configurations that can be compared: one model on one engine and device, all measured or all modelled.

    settings: purpose (`retention`, `tasks`, `fidelity`, `speed`) -> the workload shown: context, batch and output
    tokens, of pooled ones their `tasks` and `documents`, and `others`, how many of that purpose are not shown.
    rows: one a configuration, as choice.sql names the columns, `exact` (see Strategy.exact), and whether the qualities
    of READ were asked so (`retention_is_read`, `as_full_is_read`); shares as fractions, bytes, seconds.
    """

    model: str
    engine_label: str
    device: str
    source: str
    settings: dict[str, Row]
    rows: list[Row]
    verdict: Row | None  # the line of `guard_rails` for the retention workload shown

    @property
    def full(self) -> Row | None:
        """The full cache's row: what every other one is measured against."""
        return next((row for row in self.rows if row["strategy"] == "full"), None)

    @property
    def has_tiers(self) -> bool:
        """Does any configuration keep tokens outside the device?"""
        return any(row["host_bytes"] or row["file_bytes"] for row in self.rows)

    @property
    def is_uninformative(self) -> bool:
        """Do the guard rails say that retention shows nothing here? Then no advice may rest on it."""
        return self.verdict is not None and self.verdict["verdict"] == "uninformative"


def compare(connection: duckdb.DuckDBPyConnection) -> list[Group]:
    """All groups of a published campaign, in order of their names."""
    folder = files("kvfrontier.analysis")
    connection.execute(folder.joinpath("settings.sql").read_text())
    settings = _rows(connection, "FROM settings")
    exact, read = exactness(connection), readings(connection)
    rows = _rows(connection, folder.joinpath("choice.sql").read_text())
    rows = [row | {"exact": exact.get(row["strategy_label"], "")} for row in rows]
    rails = {(*_key(row)[:3], row["workload_label"]): row for row in _rows(connection, "FROM guard_rails")}
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    found = []
    for key, members in groups.items():
        shown = _shown(row for row in settings if _key(row) == key)
        retention = shown.get("retention")
        verdict = rails.get((*key[:3], retention["workload_label"])) if retention else None
        asked = {f"{quality}_is_read": _is_read(shown.get(purpose), metric, read) for quality, purpose, metric in READ}
        found.append(Group(*key, settings=shown, rows=[row | asked for row in members], verdict=verdict))
    return found


def _shown(settings: Iterable[Row]) -> dict[str, Row]:
    """Purpose -> the workload shown; of several (tasks, pooled) the first, with the names and documents of all."""
    found: dict[str, Row] = {}
    for row in settings:
        first = found.setdefault(row["purpose"], row | {"tasks": [], "documents": 0, "labels": []})
        first["labels"].append(row["workload_label"])
        if row["task"]:
            first["tasks"].append(row["task"])
            first["documents"] += row["weight"]
    return found


def _is_read(shown: Row | None, metric: str, read: set[tuple[str, str]]) -> bool:
    return shown is not None and all((label, metric) in read for label in shown["labels"])


def count_by_status(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Cells of the campaign by status, the most frequent first."""
    return dict(connection.execute("SELECT status, count(*) FROM cells GROUP BY ALL ORDER BY 2 DESC, 1").fetchall())


def _rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    return connection.sql(sql).to_arrow_table().to_pylist()


def _key(row: Row) -> tuple:
    return (row["model"], row["engine_label"], row["device"], row.get("source", "measured"))
