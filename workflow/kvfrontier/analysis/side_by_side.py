"""Engines of one campaign in one table: what each costs, at which quality, and from which engine each number is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby

import duckdb

from kvfrontier.analysis.frontier import Row
from kvfrontier.analysis.table import MARK
from kvfrontier.units import format_bytes, format_seconds

HEADER = ("engine", "strategy", "budget", "quality", "measured on", "KV bytes", "tokens/s", "TTFT")
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


def side_by_side(connection: duckdb.DuckDBPyConnection) -> list[SideBySide]:
    """One table for each model and device of which several engines were measured."""
    sql = files("kvfrontier.analysis").joinpath("side_by_side.sql").read_text()
    rows = connection.sql(sql).to_arrow_table().to_pylist()
    return [SideBySide(*key, list(members)) for key, members in groupby(rows, _key)]


def cells(row: Row) -> list[str]:
    """A line under HEADER; a MARK where no line is as good both in quality and in that column."""
    budget = "" if row["budget"] is None else f"{row['budget']:g}"
    quality = QUALITIES.get(row["quality_metric"], "{:.0%}").format(row["quality"])
    return [
        row["engine_label"],
        row["series"],
        budget,
        quality,
        row["quality_engine_label"],
        format_bytes(row["kv_bytes"]) + MARK * row["leads_memory"] if row["kv_bytes"] is not None else "",
        f"{row['tokens_per_s']:.3g}{MARK * row['leads_throughput']}",
        format_seconds(row["ttft_s"]) + MARK * row["leads_ttft"],
    ]


def _key(row: Row) -> tuple[str, str, str]:
    return row["model"], row["device"], row["source"]
