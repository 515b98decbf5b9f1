"""`kvfrontier plan [CAMPAIGN]`: what a run would do, before it does it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any

import click

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
    """Plan CAMPAIGN [the default one]: its shards, what is stored already, what would be measured and why.

    Checks the campaign and the files it names first and reports every mistake at once. Measures nothing.
    """
    from kvfrontier.plan.disk import prepare, read_cells
    from kvfrontier.plan.project import Project
    from kvfrontier.store.running import keep_plan_of_run
    from kvfrontier.store.standing import standings

    project = Project.find()
    index = prepare(project, campaign, keep_plan_of_run)
    cells = read_cells(index.campaign_dir)
    found, damaged = standings(cells, index.campaign_dir, index.max_attempts, project.settings.fingerprint.ignore)
    by_shard: dict[str, Counter] = {shard.name: Counter() for shard in index.shards}
    for shard, standing in zip(cells.column("shard").to_pylist(), found, strict=True):
        by_shard[shard][standing.state] += 1
    summary = {
        "campaign": index.campaign,
        "run": f"snakemake --profile profiles/local --config campaign={shlex.quote(campaign or index.campaign)}",
        "results": str(index.campaign_dir),
        "cells": cells.num_rows,
        **{state: sum(counts[state] for counts in by_shard.values()) for state in STATES},
        "dropped": index.dropped,
        "duplicates": index.duplicates,
        "reasons": dict(Counter(item.reason for item in found if item.state == "measure").most_common()),
        "unsupported_reasons": dict(
            Counter(item.reason for item in found if item.state == "unsupported").most_common()
        ),
        "notes": list(index.notes),
        "damaged": damaged,
        "shards": [
            {
                "name": shard.name,
                "model": shard.model,
                "engine": shard.engine,
                "device": shard.device,
                "cells": shard.cells,
            }
            | {state: by_shard[shard.name][state] for state in STATES}
            for shard in index.shards
        ],
    }
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    click.echo(_as_text(summary, _cell_table(cells, found) if cells.num_rows <= most_cells else ""))


def _cell_table(cells: Any, found: list[Any]) -> str:
    """One line a cell: what it is, and where it stands."""
    from kvfrontier.cli._table import text_table

    columns = ("cell_id", "model", "strategy_label", "workload", "batch_size", "context_tokens", "seed")
    values = zip(*(cells.column(name).to_pylist() for name in columns), strict=True)
    rows = [
        (cell_id[:8], *rest, f"{standing.state}: {standing.reason}")
        for (cell_id, *rest), standing in zip(values, found, strict=True)
    ]
    return text_table(("cell", "model", "strategy", "workload", "batch", "context", "seed", "state"), rows)


def _as_text(summary: dict[str, Any], cell_table: str) -> str:
    from kvfrontier.cli._table import text_table

    shards = summary["shards"]
    rows = [(item["name"], item["cells"], *(item[state] for state in STATES)) for item in shards[:SHOWN]]
    table = text_table(("shard", "cells", "to measure", "stored", "unsupported"), rows, widest=100)
    dropped = f", {summary['dropped']:,} dropped by constraints" if summary["dropped"] else ""
    size = f"{_count(summary['cells'], 'cell')} in {_count(len(shards), 'shard')}"
    lines = [
        f"Campaign {summary['campaign']}: {size}{dropped}",
        "",
        table,
        *([f"... and {len(shards) - SHOWN:,} more shards"] if len(shards) > SHOWN else []),
        *(["", cell_table] if cell_table else []),
    ]
    for title, key in (("To measure", "reasons"), ("Unsupported", "unsupported_reasons")):
        if summary[key]:
            lines += [
                "",
                f"{title}:",
                *(f"{count:8,}  {reason}" for reason, count in list(summary[key].items())[:SHOWN]),
            ]
    lines += ["", *(f"Note: {note}" for note in summary["notes"])] if summary["notes"] else []
    lines += [f"Damaged, left out: {line}" for line in summary["damaged"]]
    lines += ["", _total(summary)]
    return "\n".join(lines)


def _total(summary: dict[str, Any]) -> str:
    if not summary["measure"]:
        return f"Nothing to measure: all {_count(summary['cells'], 'cell')} are stored or unsupported."
    rest = f"{summary['stored']:,} stored, {summary['unsupported']:,} unsupported"
    total = f"{_count(summary['measure'], 'cell')} to measure, {rest}."
    return f"{total}\nRun: {summary['run']}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
