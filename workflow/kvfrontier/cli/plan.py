"""`kvfrontier plan [CAMPAIGN]`: what a run would do and cost, before it does it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kvfrontier.errors import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from kvfrontier.plan.disk import PlanIndex
    from kvfrontier.run.estimate import Estimate
    from kvfrontier.store.standing import Standing

SHOWN = 20
STATES = ("measure", "stored", "unsupported")


@click.command()
@click.argument("campaign", required=False)
@click.option(
    "--cells",
    "most_cells",
    type=click.IntRange(min=0),
    default=40,
    show_default=True,
    help="List every cell where there are at most this many.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, with every shard.")
def command(campaign: str | None, most_cells: int, as_json: bool) -> None:
    """Plan CAMPAIGN [the default one]: its shards, what is stored already, what would be measured, why, at what cost.

    Checks the campaign and the files it names first and reports every mistake at once. Measures nothing. The cost is
    of the cells alone, one after another: what rows of the same or of similar cells took, else what a model says.
    """
    from kvfrontier.cli._campaign import prepared

    index, cells, found, reasons, costs, damaged = prepared(campaign)
    summary = {
        "campaign": index.campaign,
        "run": f"snakemake --profile profiles/local --config campaign={shlex.quote(campaign or index.campaign)}",
        "results": str(index.campaign_dir),
        **_summary(index, cells.column("shard").to_pylist(), found, reasons, costs),
        "damaged": damaged,
    }
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    table = _cell_table(cells, found, reasons, costs) if cells.num_rows <= most_cells else ""
    click.echo(printable(_as_text(summary, table)))


def _summary(
    index: PlanIndex, shards: list[str], found: list[Standing], reasons: list[str], costs: list[Estimate]
) -> dict[str, Any]:
    """Counts, reasons and costs of all cells and of each shard; a column each, in the order of the plan."""
    from kvfrontier.cli._cost import Cost, sum_up, total

    states: dict[str, Counter] = {shard.name: Counter() for shard in index.shards}
    for shard, standing in zip(shards, found, strict=True):
        states[shard][standing.state] += 1
    wanted = [number for number, standing in enumerate(found) if standing.state == "measure"]
    chosen = [costs[number] for number in wanted]
    by_shard = sum_up([shards[number] for number in wanted], chosen)
    by_reason = sum_up([reasons[number] for number in wanted], chosen)
    impossible = Counter(standing.reason for standing in found if standing.state == "unsupported")
    return {
        "cells": len(found),
        **{state: sum(counts[state] for counts in states.values()) for state in STATES},
        "cost": total(chosen).as_dict(),
        "dropped": index.dropped,
        "duplicates": index.duplicates,
        "reasons": {reason: cost.as_dict() for reason, cost in by_reason.items()},
        "unsupported_reasons": dict(impossible.most_common()),
        "notes": list(index.notes),
        "shards": [
            {
                "name": shard.name,
                "model": shard.model,
                "engine": shard.engine,
                "device": shard.device,
                "cells": shard.cells,
                **{state: states[shard.name][state] for state in STATES},
                "cost": by_shard.get(shard.name, Cost()).as_dict(),
            }
            for shard in index.shards
        ],
    }


def _cell_table(cells: pa.Table, found: Sequence[Standing], reasons: Sequence[str], costs: Sequence[Estimate]) -> str:
    """One line a cell: what it is, where it stands, and how long it will take."""
    from kvfrontier.cli._table import text_table
    from kvfrontier.units import format_seconds

    columns = ("cell_id", "model", "strategy_label", "workload", "batch_size", "context_tokens", "seed")
    values = zip(*(cells.column(name).to_pylist() for name in columns), strict=True)
    rows = [
        (cell_id[:8], *rest, format_seconds(cost.seconds) if standing.state == "measure" else None, state)
        for (cell_id, *rest), standing, cost, state in zip(values, found, costs, _states(found, reasons), strict=True)
    ]
    return text_table(("cell", "model", "strategy", "workload", "batch", "context", "seed", "time", "state"), rows)


def _states(found: Sequence[Standing], reasons: Sequence[str]) -> list[str]:
    return [f"{standing.state}: {reason}" for standing, reason in zip(found, reasons, strict=True)]


def _as_text(summary: dict[str, Any], cell_table: str) -> str:
    from kvfrontier.cli._cost import device_time, spent
    from kvfrontier.cli._table import text_table

    shards = summary["shards"]
    rows = [
        (
            item["name"],
            item["cells"],
            *(item[state] for state in STATES),
            device_time(item["cost"]["device_hours"]) if item["measure"] else "",
        )
        for item in shards[:SHOWN]
    ]
    table = text_table(("shard", "cells", "to measure", "stored", "unsupported", "cost"), rows, widest=100)
    dropped = f", {summary['dropped']:,} dropped by constraints" if summary["dropped"] else ""
    size = f"{_count(summary['cells'], 'cell')} in {_count(len(shards), 'shard')}"
    lines = [
        f"Campaign {summary['campaign']}: {size}{dropped}",
        "",
        table,
        *([f"... and {len(shards) - SHOWN:,} more shards"] if len(shards) > SHOWN else []),
        *(["", cell_table] if cell_table else []),
    ]
    if summary["reasons"]:
        told = [f"{cost['cells']:8,}  {reason}: {spent(cost)}" for reason, cost in summary["reasons"].items()]
        lines += ["", "To measure:", *_first(told, "reasons")]
    if summary["unsupported_reasons"]:
        told = [f"{count:8,}  {reason}" for reason, count in summary["unsupported_reasons"].items()]
        lines += ["", "Unsupported:", *_first(told, "reasons")]
    lines += ["", *(f"Note: {note}" for note in summary["notes"])] if summary["notes"] else []
    lines += [f"Damaged, left out: {line}" for line in summary["damaged"]]
    lines += ["", _total(summary)]
    return "\n".join(lines)


def _first(lines: list[str], noun: str) -> list[str]:
    more = len(lines) - SHOWN
    return lines[:SHOWN] + ([f"... and {more:,} more {noun}: --json lists them all"] if more > 0 else [])


def _total(summary: dict[str, Any]) -> str:
    from kvfrontier.cli._cost import spent

    if not summary["measure"]:
        return f"Nothing to measure: all {_count(summary['cells'], 'cell')} are stored or unsupported."
    rest = f"{summary['stored']:,} stored, {summary['unsupported']:,} unsupported"
    total = f"{_count(summary['measure'], 'cell')} to measure, {spent(summary['cost'])}; {rest}."
    return f"{total}\nRun: {summary['run']}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
