"""A group of configurations as rows of text, for the terminal and for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvfrontier.analysis.choice import by_construction
from kvfrontier.analysis.frontier import Group, Row
from kvfrontier.analysis.labels import shorter
from kvfrontier.units import format_bytes, format_seconds

HEADER = (
    "strategy", "budget", "device KV", "of full", "retention", "as full", "acc", "KL nat", "top-1", "tokens/s", "TTFT",
)  # fmt: skip
TIERS = ("strategy", "budget", "device KV", "host KV", "file KV", "all KV", "all of full")
BYTES_COUNTED = (
    "Device KV: keys, values and the strategy's bookkeeping on the device (a GPU's memory; on a CPU it is the same "
    "RAM), at the phase where they are most, and what decode steps fetch there at most, where measured. Layers of an "
    "offloaded cache in passing are not counted. Host KV, file KV: what lies in host memory and in files, to be "
    "fetched. All KV: all of it."
)
MARK = "*"
NONE = "-"
"""There can be no such value; one that was not measured is empty."""
GIVEN = "="
"""After a quality that is the full cache's by construction."""
MOST_ROWS, MOST_TASKS = 40, 8
EXPLAINED = {
    "retention": "retention equals the full cache's by construction. Forced choice reads the question and the "
    "alternatives without a decode step, and these strategies keep every token for such a reading: what their decode "
    "steps lose is seen in the divergence (KL, top-1) alone.",
    "as_full": "answers to tasks equal the full cache's by construction, since they are compared by their likelihood "
    "and read without a decode step. With `feed: steps` they are measured.",
}
"""Of qualities that can be so by construction."""
POOLED = (
    "As full: documents answered as with the full cache, with a 95 % Wilson interval; acc: answered right. Both are of "
    "the documents of all tasks as one sample; a configuration that lacks one of the tasks has neither."
)
PURPOSES = ("retention", "tasks", "fidelity", "speed")
"""In the order in which settings.sql looks for KV bytes, and choice.sql for a quality to set them against."""


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
        """For each column: does every value in it begin with a number?"""
        columns = (
            [row[index] for row in self.rows if row[index] not in ("", NONE)] for index in range(len(self.header))
        )
        return tuple(bool(values) and all(_is_number(value) for value in values) for values in columns)


def _is_number(text: str) -> bool:
    return text.lstrip("+-<(to ")[:1].isdigit()


def choice_table(group: Group) -> TextTable:
    """One line a configuration; columns without a single value are left out, as a campaign may lack a workload.

    Of more than MOST_ROWS configurations only the full cache and those on a frontier are shown.
    """
    members = (
        group.rows if len(group.rows) <= MOST_ROWS else [row for row in group.rows if _stands_out(row)][:MOST_ROWS]
    )
    given = {quality: [row["strategy_label"] for row in by_construction(group, quality)] for quality in EXPLAINED}
    rows = [_cells(row, given) for row in _named(group, members)]
    left_out = len(group.rows) - len(members)
    return _filled(HEADER, rows, f"{left_out} more configurations are in the database." if left_out else "")


def tiers_table(group: Group) -> TextTable | None:
    """Where the bytes lie of those that keep some outside the device, beside the full cache and the frontier of all
    bytes together; None where nothing is outside."""
    if not group.has_tiers:
        return None
    members = [row for row in group.rows if row["host_bytes"] or row["file_bytes"] or row["strategy"] == "full"]
    members += [row for row in group.rows if row["leads_memory"] and row not in members]
    rows = [_tiers(row) for row in _named(group, members[:MOST_ROWS])]
    left_out = len(members) - len(rows)
    return _filled(TIERS, rows, f"{left_out} more configurations are in the database." if left_out else "")


def _named(group: Group, rows: list[Row]) -> list[Row]:
    """With names no longer than tells the strategies of the group apart."""
    short = shorter(row["series"] for row in group.rows)
    return [row | {"series": short[row["series"]]} for row in rows]


def _filled(header: tuple[str, ...], rows: list[list[str]], note: str) -> TextTable:
    kept = [index for index in range(len(header)) if any(row[index] for row in rows)]
    return TextTable(
        tuple(header[index] for index in kept), [[row[index] for index in kept] for row in rows], note=note
    )


def remarks(group: Group) -> list[str]:
    """What must be known of the numbers before one is chosen."""
    said = [POOLED] if any(row["as_full"] is not None for row in group.rows) else []
    for quality, explained in EXPLAINED.items():
        given = list(dict.fromkeys(row["series"] for row in by_construction(group, quality)))
        said += [f"{GIVEN} {', '.join(given)}: {explained}"] if given else []
    return said


def title(group: Group) -> str:
    """Model, engine and device in one line."""
    modelled = ["MODELLED, not measured"] if group.source == "model" else []
    return " · ".join([group.model, group.engine_label, group.device, *modelled])


def settings(group: Group) -> list[tuple[str, str]]:
    """Purpose and workload of each kind of number in the table, and which of them the KV bytes are from."""
    shown = [(purpose, group.settings[purpose]) for purpose in PURPOSES if purpose in group.settings]
    return [(purpose, _describe(setting) + _bytes_from(setting)) for purpose, setting in shown]


def _describe(setting: Row) -> str:
    """`batch 4, 1,024 tokens of context, 32 tokens out (2 more settings in the store)`."""
    parts = [
        _pooled(setting["tasks"], setting["documents"]) if setting["tasks"] else "",
        f"batch {setting['batch_size']}" if setting["batch_size"] else "",
        f"{setting['context_tokens']:,} tokens of context" if setting["context_tokens"] else "",
        f"{setting['output_tokens']:,} tokens out" if setting["output_tokens"] else "",
    ]
    more = setting["others"]
    others = f" ({more} more setting{'s' * (more > 1)} in the store)" if more else ""
    return (", ".join(part for part in parts if part) or setting["workload_label"]) + others


def _bytes_from(setting: Row) -> str:
    from_here = "; KV bytes are from here" + ", means over them" * (setting["workloads"] > 1)
    return from_here * setting["gives_bytes"]


def _pooled(tasks: list[str], documents: int) -> str:
    """`96 documents of arc_easy, boolq, pooled`."""
    more = [f"{len(tasks) - MOST_TASKS} more tasks"] if len(tasks) > MOST_TASKS else []
    return f"{documents:,} documents of {', '.join([*tasks[:MOST_TASKS], *more])}" + ", pooled" * (len(tasks) > 1)


def _stands_out(row: Row) -> bool:
    return (
        row["strategy"] == "full"
        or row["leads_device"]
        or row["leads_memory"]
        or row["leads_throughput"]
        or row["leads_ttft"]
    )


def _tiers(row: Row) -> list[str]:
    return [
        row["series"],
        _text(row["budget"], "{:g}".format),
        _text(row["device_bytes"], format_bytes, row["leads_device"]),
        _text(row["host_bytes"], format_bytes),
        _text(row["file_bytes"], format_bytes),
        _text(row["kv_bytes"], format_bytes, row["leads_memory"]),
        _text(row["kv_share"], "{:.0%}".format),
    ]


def _cells(row: Row, given: dict[str, list[str]]) -> list[str]:
    return [
        row["series"],
        _text(row["budget"], "{:g}".format),
        _text(row["device_bytes"], format_bytes, row["leads_device"]),
        _text(row["device_share"], "{:.0%}".format),
        _share(row, "retention", given),
        _share(row, "as_full", given),
        _text(row["acc"], "{:.0%}".format),
        _text(row["kl"], "{:.3f}".format),
        _text(row["top1"], "{:.0%}".format),
        _text(row["tokens_per_s"], "{:.3g}".format, row["leads_throughput"]),
        _text(row["ttft_s"], format_seconds, row["leads_ttft"]),
    ]


def _share(row: Row, quality: str, given: dict[str, list[str]]) -> str:
    """`53% [30-75]`, marked where it is so by construction."""
    text, low, high = _text(row[quality], "{:.0%}".format), row[f"{quality}_low"], row[f"{quality}_high"]
    text += "" if low is None else f" [{100 * low:.0f}-{100 * high:.0f}]"
    return text + GIVEN * (row["strategy_label"] in given[quality])


def _text(value: float | None, show: Any, is_marked: bool = False) -> str:
    return "" if value is None else show(value) + MARK * is_marked
