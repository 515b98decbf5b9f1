"""Strategies of one campaign against one of them, on the very same items: what differs beyond chance, and what cannot
be told.

`compare` is between versions of the code or campaigns; this is between the strategies of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import duckdb

from kvfrontier.analysis.exact import exactness, readings
from kvfrontier.analysis.labels import shorter
from kvfrontier.analysis.resampling import mean_interval, needed, share_interval, sign_flips
from kvfrontier.analysis.significance import holm
from kvfrontier.errors import KVFrontierError, did_you_mean
from kvfrontier.metrics import FULL_AGREEMENT, KL_DIVERGENCE, METRICS, TOP1_AGREEMENT

TO_THE_FULL_CACHE = frozenset({KL_DIVERGENCE, TOP1_AGREEMENT, FULL_AGREEMENT})
"""Metrics that are a distance from the full cache: it is not to be compared with again."""
FULL = "full"
ALPHA = 0.05


class NoItems(KVFrontierError):
    """There is nothing to pair."""


class Line(NamedTuple):
    """One strategy against the reference, all phases together or one of them.

    n: items both have. independent: conversations or documents among them. mean, reference_mean: of these items.
    difference: mean - reference_mean, with its 95 % interval. lost, gained: items right with the reference alone, and
    with the strategy alone (None: not right or wrong). p: of chance alone; corrected: for all lines tested beside it.
    visible: the smallest difference that so few items can show at all; None where none, or where the interval says it.
    verdict: better, worse, changed, `not told apart`, same (each item equal), `too few`, `by construction`.
    """

    strategy_label: str
    series: str
    budget: float | None
    reference_label: str
    reference_budget: float | None
    phase: str | None
    n: int
    independent: int
    mean: float
    reference_mean: float
    difference: float
    low: float | None
    high: float | None
    lost: int | None
    gained: int | None
    p: float | None
    corrected: float | None
    visible: float | None
    verdict: str


@dataclass(frozen=True)
class Paired:
    """All strategies of one model, engine, device and workload against one reference, in one metric.

    lines: all phases together. by_phase: each phase alone, corrected by themselves. needed, needed_by_phase:
    conversations or documents that must all change the same way before any such line can be told from chance.
    """

    model: str
    engine_label: str
    device: str
    source: str
    workload_label: str
    metric: str
    reference: str
    lines: list[Line]
    by_phase: list[Line]
    needed: int
    needed_by_phase: int

    @property
    def is_share(self) -> bool:
        """Whether items are right or wrong."""
        return METRICS[self.metric].kind == "proportion"


def paired(
    connection: duckdb.DuckDBPyConnection, reference: str, metrics: Iterable[str], alpha: float = ALPHA
) -> list[Paired]:
    """Compare each strategy with `reference` (a label without its budget), for each metric that has items."""
    sql = files("kvfrontier.analysis").joinpath("paired.sql").read_text()
    exact, read = exactness(connection), readings(connection)
    found = []
    for metric in metrics:
        if reference == FULL and metric in TO_THE_FULL_CACHE:
            continue
        asked = connection.sql(sql, params={"metric": metric, "reference": reference})
        rows = [row | {"given": _is_given(row, metric, exact, read)} for row in asked.to_arrow_table().to_pylist()]
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:
            key = tuple(row[name] for name in ("model", "engine_label", "device", "source", "workload_label"))
            groups.setdefault(key, []).append(row)
        for key, members in groups.items():
            together, apart = ([row for row in members if (row["phase"] is None) == whole] for whole in (True, False))
            (lines, least), (by_phase, least_apart) = (_tested(rows, metric, alpha) for rows in (together, apart))
            found.append(Paired(*key, metric, reference, lines, by_phase, least, least_apart))
    return found


def quality_metrics(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Metrics of quality that the campaign measured item by item."""
    return [name for name in measured_by_item(connection) if METRICS[name].role == "quality"]


def measured_by_item(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Metrics with a value for each request, repeats of timed work left out."""
    rows = connection.sql("""
        SELECT metric FROM measurements WHERE request IS NOT NULL AND repeat IS NULL GROUP BY metric ORDER BY metric
    """).fetchall()
    return [name for (name,) in rows if name in METRICS]


def references(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What the campaign says the others are compared with; where it says nothing, the full cache, if it has one."""
    said = [label for (label,) in connection.sql("SELECT reference FROM against").fetchall()]
    full = connection.sql("SELECT 1 FROM cells WHERE strategy = 'full' LIMIT 1").fetchall()
    return said or ([FULL] if full else [])


def find_reference(connection: duckdb.DuckDBPyConnection, said: str) -> str:
    """The one strategy that `said` names: its label without budget, its name, or a part of the label that no other has.

    Raises NoItems with those there are.
    """
    rows = connection.sql("SELECT DISTINCT without_budget(strategy_label), strategy FROM cells ORDER BY ALL").fetchall()
    labels = [label for label, _ in rows]
    short = shorter(labels)
    ways = (
        [label for label in labels if said in (label, short[label])],
        [label for label, name in rows if name == said],
        [label for label in labels if said in label],
    )
    matches = next(filter(None, ways), [])
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise NoItems(f"'{said}' may be {_listed(matches)}: give more of the label")
    raise NoItems(
        f"no strategy of the campaign is called '{said}'. {did_you_mean(said, labels)} It has {_listed(labels)}"
    )


def _listed(labels: Sequence[str]) -> str:
    return "; ".join(labels)


def _is_given(row: dict[str, Any], metric: str, exact: dict[str, str], read: set[tuple[str, str]]) -> bool:
    """Whether both must answer as the full cache does: what was asked saw every token that either ever read."""
    return (row["workload_label"], metric) in read and {row["strategy_label"], row["reference_label"]} <= set(exact)


def _tested(rows: list[dict[str, Any]], metric: str, alpha: float) -> tuple[list[Line], int]:
    """Lines with their corrected p, and how many clusters must change before one can be told."""
    is_share = METRICS[metric].kind == "proportion"
    ps = [float("nan") if row["given"] else sign_flips(row["sums"]) for row in rows]
    corrected = holm(ps)
    least = needed(alpha, sum(not row["given"] for row in rows))
    lines = []
    for row, p, fair in zip(rows, ps, corrected, strict=True):
        low, high = (share_interval if is_share else mean_interval)(row["sums"], row["items"])
        difference = sum(row["sums"]) / row["n"]
        known = low == low
        lines.append(
            Line(
                *(
                    row[name]
                    for name in (
                        "strategy_label",
                        "series",
                        "budget",
                        "reference_label",
                        "reference_budget",
                        "phase",
                        "n",
                    )
                ),
                independent=len(row["items"]),
                mean=row["mean"],
                reference_mean=row["reference_mean"],
                difference=difference,
                low=low if known else None,
                high=high if known else None,
                lost=row["lost"] if is_share else None,
                gained=row["gained"] if is_share else None,
                p=None if row["given"] else p,
                corrected=None if row["given"] else float(fair),
                visible=least / row["n"] if is_share and least <= len(row["items"]) else None,
                verdict=_verdict(row, metric, difference, float(fair), least, alpha),
            )
        )
    return lines, least


def _verdict(row: dict[str, Any], metric: str, difference: float, p: float, least: int, alpha: float) -> str:
    if row["given"]:
        return "by construction"
    if p < alpha:
        better = METRICS[metric].better
        return "changed" if better == "neither" else "better" if (difference > 0) == (better == "higher") else "worse"
    if len(row["items"]) < least:
        return "too few"
    return "not told apart" if row["differing"] else "same"
