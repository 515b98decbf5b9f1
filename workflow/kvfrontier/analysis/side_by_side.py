"""Engines of one campaign in one table: what each costs, at which quality, and from which engine each number is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby

import duckdb

from kvfrontier.analysis.frontier import Row
from kvfrontier.analysis.table import MARK, TextTable
from kvfrontier.units import format_bytes, format_seconds

HEADER = ("engine", "strategy", "budget", "quality", "measured on", "device KV", "tokens/s", "TTFT")
QUALITIES = {"kl_divergence": "KL {:.3f} nat"}
"""Of other metrics a share is shown."""


@dataclass(frozen=True)
class SideBySide:
    """Configurations of one model on one device. rows: as side_by_side.sql names the columns."""

    model: str
    device: str
    source: str
    rows: list[Row]

    @property
    def title(self) -> str:
        """Model and device in one line."""
        modelled = " · MODELLED, not measured" if self.source == "model" else ""
        return f"{self.model} · all engines · {self.device}{modelled}"

    @property
    def settings(self) -> list[tuple[str, str]]:
        """The workloads that costs and qualities are from."""
        first = self.rows[0]
        return [("costs", first["workload_label"]), ("quality", first["quality_workload_label"])]

    @property
    def table(self) -> TextTable:
        """One line a configuration. A MARK where no other line is as good both in quality and in that column."""
        return TextTable(HEADER, [_cells(row) for row in self.rows])


def side_by_side(connection: duckdb.DuckDBPyConnection) -> list[SideBySide]:
    """One table for each model and device of which several engines were measured."""
    sql = files("kvfrontier.analysis").joinpath("side_by_side.sql").read_text()
    rows = connection.sql(sql).to_arrow_table().to_pylist()
    return [SideBySide(*key, list(members)) for key, members in groupby(rows, _key)]


def _cells(row: Row) -> list[str]:
    quality = QUALITIES.get(row["quality_metric"], "{:.0%}").format(row["quality"])
    return [
        row["engine_label"],
        row["series"],
        _text(row["budget"], "{:g}".format),
        quality,
        row["quality_engine_label"],
        _text(row["device_bytes"], format_bytes, row["leads_device"]),
        _text(row["tokens_per_s"], "{:.3g}".format, row["leads_throughput"]),
        _text(row["ttft_s"], format_seconds, row["leads_ttft"]),
    ]


def _key(row: Row) -> tuple[str, str, str]:
    return row["model"], row["device"], row["source"]


def _text(value: float | None, show: Callable[[float], str], is_marked: bool = False) -> str:
    return "" if value is None else show(value) + MARK * is_marked
