"""A group of configurations as rows of text, for the terminal and for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvfrontier.analysis.frontier import Group, Row
from kvfrontier.units import format_bytes, format_seconds

HEADER = ("strategy", "budget", "KV bytes", "of full", "retention", "KL nat", "top-1", "tokens/s", "TTFT")
MARK = "*"
MOST_ROWS = 40
PURPOSES = ("retention", "fidelity", "speed")
"""In the order in which choice.sql looks for KV bytes."""


@dataclass(frozen=True)
class TextTable:
    """Rows of text. A trailing MARK says that the value is on the frontier.

    missing: said where there is no row. note: said below the rows.
    """

    header: tuple[str, ...]
    rows: list[list[str]]
    missing: str = ""
    note: str = ""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column: does every value in it begin with a digit?"""
        columns = ([row[index] for row in self.rows if row[index]] for index in range(len(self.header)))
        return tuple(bool(values) and all(value[0].isdigit() for value in values) for values in columns)


def choice_table(group: Group) -> TextTable:
    """One line a configuration; columns without a single value are left out, as a campaign may lack a workload.

    Of more than MOST_ROWS configurations only the full cache and those on a frontier are shown.
    """
    members = (
        group.rows if len(group.rows) <= MOST_ROWS else [row for row in group.rows if _stands_out(row)][:MOST_ROWS]
    )
    rows = [_cells(row) for row in members]
    kept = [index for index in range(len(HEADER)) if any(row[index] for row in rows)]
    more = f"{len(group.rows) - len(members)} more configurations are in the database." if members != group.rows else ""
    return TextTable(
        tuple(HEADER[index] for index in kept), [[row[index] for index in kept] for row in rows], note=more
    )


def title(group: Group) -> str:
    """Model, engine and device in one line."""
    modelled = ["MODELLED, not measured"] if group.source == "model" else []
    return " · ".join([group.model, group.engine_label, group.device, *modelled])


def settings(group: Group) -> list[tuple[str, str]]:
    """Purpose and workload of each kind of number in the table, and which of them the KV bytes are from."""
    known = [purpose for purpose in PURPOSES if purpose in group.settings]
    lines = [(purpose, _describe(group.settings[purpose])) for purpose in known]
    return [(purpose, text + "; KV bytes are from here" * (not number)) for number, (purpose, text) in enumerate(lines)]


def _describe(setting: Row) -> str:
    """`batch 4, 1,024 tokens of context, 32 tokens out (2 more settings in the store)`."""
    parts = [
        f"batch {setting['batch_size']}" if setting["batch_size"] else "",
        f"{setting['context_tokens']:,} tokens of context" if setting["context_tokens"] else "",
        f"{setting['output_tokens']:,} tokens out" if setting["output_tokens"] else "",
    ]
    more = setting["others"]
    others = f" ({more} more setting{'s' * (more > 1)} in the store)" if more else ""
    return (", ".join(part for part in parts if part) or setting["workload_label"]) + others


def _stands_out(row: Row) -> bool:
    return row["strategy"] == "full" or row["leads_memory"] or row["leads_throughput"] or row["leads_ttft"]


def _cells(row: Row) -> list[str]:
    retention = text(row["retention"], "{:.0%}".format)
    if row["retention_low"] is not None:
        retention += f" [{100 * row['retention_low']:.0f}-{100 * row['retention_high']:.0f}]"
    return [
        row["series"],
        text(row["budget"], "{:g}".format),
        text(row["kv_bytes"], format_bytes, row["leads_memory"]),
        text(row["kv_share"], "{:.0%}".format),
        retention,
        text(row["kl"], "{:.3f}".format),
        text(row["top1"], "{:.0%}".format),
        text(row["tokens_per_s"], "{:.3g}".format, row["leads_throughput"]),
        text(row["ttft_s"], format_seconds, row["leads_ttft"]),
    ]


def text(value: float | None, show: Any, is_marked: bool = False) -> str:
    """A value as `show` has it, with a MARK or without; empty where there is none."""
    return "" if value is None else show(value) + MARK * is_marked
