"""Two selections of rows, pair by pair: which metrics changed beyond noise, how much, and what differs around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from kvfrontier.analysis.significance import (
    RANKED_FROM,
    Effect,
    Floats,
    Scatter,
    benjamini_hochberg,
    holm,
    mcnemar,
    over_cells,
    over_repeats,
    paired,
    scatter,
    welch,
)
from kvfrontier.metrics import METRICS

DIFFERENCES = "FROM differences ORDER BY kind DESC, name, pairs DESC, a, b"
PASSING = frozenset(
    {
        "cell",
        "load_average",
        "concurrent_cells",
        "not_finite",
        "slurm_job_id",
        "model_entry",
        "device_entry",
        "data_entries",
    }
)
"""Provenance that differs from run to run, or stands among the parts already."""


class Change(NamedTuple):
    """One metric over all pairs (`pair` is empty), or in one pair.

    place: the phase, where a metric has several. source: `measured`, or `model`, whose numbers are exact.
    n: pairs, or values on the side that has fewer. differing: how many of those that should be equal are not.
    scale: `ratio` (effect: B / A) or `difference` (effect: B - A). p: corrected for all that was tested at this level.
    verdict: worse, better, changed, same, `no change`, `too few`.
    """

    pair: str
    metric: str
    place: str
    source: str
    n: int
    differing: int
    a: float | None
    b: float | None
    scale: str
    effect: float | None
    low: float | None
    high: float | None
    p: float | None
    test: str
    verdict: str


@dataclass
class Comparison:
    """What `compare` found.

    statuses: (status in A, in B) of pairs. one_sided: (metric, `a` or `b`) that the other side of so many pairs lacks.
    cells: the cell's JSON by pair; other_cells: that of B, where it is another one.
    """

    metrics: list[Change] = field(default_factory=list)
    by_cell: list[Change] = field(default_factory=list)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    one_sided: dict[tuple[str, str], int] = field(default_factory=dict)
    differences: list[dict[str, Any]] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)
    other_cells: dict[str, str] = field(default_factory=dict)
    only_in_a: int = 0
    only_in_b: int = 0
    same_rows: int = 0

    @property
    def is_worse(self) -> bool:
        """Whether anything became worse: a metric, a cell, or a cell that no longer comes to numbers."""
        changes = (change.verdict == "worse" for change in (*self.metrics, *self.by_cell))
        return any(changes) or any(a == "ok" != b for a, b in self.statuses)


def compare(a: pa.Table, b: pa.Table, alpha: float = 0.05, by: str = "cell_id") -> Comparison:
    """Compare rows (`store.schema.ROW`), at most one a cell on each side, paired by column `by` (or, with "", all)."""
    with duckdb.connect() as connection:
        for name, rows in (("a", a), ("b", b)):
            keys = rows.column(by) if by else pa.array(["the pair"] * len(rows), pa.string())
            connection.register(name, rows.append_column("pair", keys))
        names = ("name", "kind", "unit", "nature")
        metrics = {name: [getattr(metric, name) for metric in METRICS.values()] for name in names}
        connection.register("metrics", pa.table(metrics))
        connection.execute(files("kvfrontier.analysis").joinpath("compare.sql").read_text())
        return _comparison(connection, alpha, len(a), len(b))


def _comparison(connection: duckdb.DuckDBPyConnection, alpha: float, in_a: int, in_b: int) -> Comparison:
    pairs = _rows(connection, "FROM pairs")
    noisy, noise = _noisy(connection)
    cells = [*noisy, *_side_by_side(connection)]
    found = Comparison(
        statuses=Counter((row["a_status"], row["b_status"]) for row in pairs),
        differences=[row for row in _rows(connection, DIFFERENCES) if row["name"] not in PASSING],
        one_sided={(row["metric"], row["side"]): row["pairs"] for row in _rows(connection, "FROM one_sided")},
        cells={row["pair"]: row["cell"] for row in pairs},
        other_cells={row["pair"]: row["other_cell"] for row in pairs if row["cell"] != row["other_cell"]},
        only_in_a=in_a - len(pairs),
        only_in_b=in_b - len(pairs),
        same_rows=sum(row["is_same_row"] for row in pairs),
    )
    found.by_cell = _judged(cells, benjamini_hochberg([change.p for change in cells]), alpha)
    over = list(_over_cells(cells, noise))
    found.metrics = _judged(over, holm([change.p for change in over]), alpha)
    return found


def _noisy(connection: duckdb.DuckDBPyConnection) -> tuple[list[Change], Scatter]:
    """Repeats against repeats of each pair, and how they scatter."""
    rows = _rows(connection, "FROM noisy WHERE n_a > 0 AND n_b > 0 ORDER BY metric, place, pair")
    effects = _column(rows, "mean_b") - _column(rows, "mean_a")
    noise = scatter(*(_column(rows, name) for name in ("sd_a", "n_a", "sd_b", "n_b")))
    changes = []
    for row, values in zip(rows, zip(*welch(effects, noise), strict=True), strict=True):
        changes.append(_change(row, int(min(row["n_a"], row["n_b"])), 0, Effect(*map(float, values), "Welch")))
    return changes, noise


def _side_by_side(connection: duckdb.DuckDBPyConnection) -> Iterator[Change]:
    """Value against value of each pair."""
    rows = _rows(connection, "FROM side_by_side ORDER BY metric, place, pair")
    effects = paired(*(_column(rows, name) for name in ("mean", "sd", "n")))
    outcomes = mcnemar(_column(rows, "lost"), _column(rows, "gained"))
    for row, values, outcome in zip(rows, zip(*effects, strict=True), outcomes, strict=True):
        effect = Effect(*map(float, values), "t")
        if not row["differing"]:
            effect = Effect(0.0, 0.0, 0.0, np.nan, "same")
        elif row["mode"] == "exact":
            size = _log_ratio(row["a"], row["b"]) if row["scale"] == "ratio" else row["b"] - row["a"]
            effect = Effect(size, np.nan, np.nan, np.nan, "exact")
        elif row["kind"] == "proportion":
            effect = effect._replace(p=float(outcome), test="McNemar")
        yield _change(row, row["n"], row["differing"], effect)


def _over_cells(cells: Sequence[Change], noise: Scatter) -> Iterator[Change]:
    """Each metric over all pairs. `noise`: of the first of `cells`, those that are noisy."""
    groups: dict[tuple, list[int]] = {}
    for index, change in enumerate(cells):
        groups.setdefault((change.metric, change.place, change.source, change.scale), []).append(index)
    for (metric, place, source, scale), indexes in groups.items():
        members = [cells[index] for index in indexes]
        a, b = ([getattr(member, side) for member in members] for side in ("a", "b"))
        row = {"pair": "", "metric": metric, "place": place, "source": source, "scale": scale}
        row |= {"a": float(np.median(a)), "b": float(np.median(b))}
        differing = sum(member.test not in ("same", "Welch") for member in members)
        yield _change(row, len(members), differing, _effect_over(members, indexes, noise))


def _effect_over(members: Sequence[Change], indexes: Sequence[int], noise: Scatter) -> Effect:
    sizes = np.array([member.effect for member in members], dtype=float)
    tests = {member.test for member in members}
    if tests <= {"same", "exact"}:
        known = sizes[np.isfinite(sizes)]
        return Effect(
            float(known.mean() if len(known) else sizes[0]), *[np.nan] * 3, max(tests - {"same"}, default="same")
        )
    if len(members) == 1:
        return Effect(*(getattr(members[0], name) for name in Effect._fields))
    if tests == {"Welch"} and len(members) < RANKED_FROM:
        pooled = over_repeats(sizes, Scatter(noise.error[indexes], noise.freedom[indexes]))
        if np.isfinite(pooled.p):
            return pooled
    return over_cells(sizes[np.isfinite(sizes)])


def _change(row: dict[str, Any], n: int, differing: int, effect: Effect) -> Change:
    names = {name: row[name] for name in ("pair", "metric", "source", "a", "b", "scale")}
    return Change(**names, **effect._asdict(), place=row["place"] or "", n=n, differing=differing, verdict="")


def _judged(changes: Sequence[Change], corrected: Floats, alpha: float) -> list[Change]:
    """With p corrected, effects on their own scale, the verdict in words; what changed first."""
    judged = []
    for change, p in zip(changes, corrected, strict=True):
        sizes = {name: _on_scale(getattr(change, name), change.scale) for name in ("effect", "low", "high")}
        judged.append(change._replace(**sizes, p=_plain(p), verdict=_verdict(change, p, alpha)))
    return sorted(judged, key=lambda item: (ORDER.index(item.verdict), -1 if item.p is None else item.p))


ORDER = ("worse", "better", "changed", "no change", "too few", "same")


def _verdict(change: Change, p: float, alpha: float) -> str:
    if change.test == "same":
        return "same"
    if change.test != "exact":
        if np.isnan(p):
            return "too few"
        if p >= alpha:
            return "no change"
    better = METRICS[change.metric].better
    if better == "neither" or not change.effect:
        return "changed"
    return "better" if (change.effect < 0) == (better == "lower") else "worse"


def _on_scale(value: float, scale: str) -> float | None:
    return _plain(np.exp(value) if scale == "ratio" else value)


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _log_ratio(a: float, b: float) -> float:
    return float(np.log(b / a)) if a > 0 and b > 0 else float(np.sign(b - a)) * np.inf


def _column(rows: Sequence[dict[str, Any]], name: str) -> Floats:
    return np.array([row[name] for row in rows], dtype=float)


def _rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    return connection.sql(sql).to_arrow_table().to_pylist()
