"""`kvfrontier explain [CAMPAIGN]`: why cells would be measured again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from kvfrontier.errors import printable

if TYPE_CHECKING:
    from kvfrontier.plan.cell import Cell
    from kvfrontier.run.estimate import Estimate

SHOWN, WIDTH = 20, 120


@click.command()
@click.argument("campaign", required=False)
@click.option("--cell", "prefix", default="", help="Only cells whose cell_id or fingerprint starts with this.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: one object a group of cells.")
def command(campaign: str | None, prefix: str, as_json: bool) -> None:
    """Say for each stale or missing cell of CAMPAIGN [the default one] what changed since it was measured.

    Cells are grouped by what changed; a change names the part (code, model, data, package) before and now, and the
    group what measuring it costs.
    """
    from kvfrontier.cli._campaign import prepared
    from kvfrontier.cli._cost import spent, total

    index, plan, found, reasons, costs, damaged = prepared(campaign)
    names = ("cell_id", "fingerprint", "cell")
    cells = zip(*(plan.column(name).to_pylist() for name in names), found, reasons, costs, strict=True)
    chosen = [cell for cell in cells if cell[0].startswith(prefix) or cell[1].startswith(prefix)]
    if prefix and not chosen:
        raise click.UsageError(f"no cell of {index.campaign} has a cell_id or fingerprint that starts with '{prefix}'")
    groups: dict[tuple, list] = {}
    for *cell, standing, reason, estimate in chosen:
        if standing.state != "stored" or prefix:
            key = (standing.state, reason, standing.reason, tuple(sorted(standing.changes.items())))
            groups.setdefault(key, []).append((*cell, estimate))
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    described = [_describe(key, members) for key, members in ordered]
    needed = [estimate for *_, standing, _, estimate in chosen if standing.state == "measure"]
    cost = total(needed).as_dict()
    if as_json:
        answer = {"campaign": index.campaign, "cost": cost, "groups": described, "damaged": damaged}
        click.echo(json.dumps(answer, indent=2))
        return
    for line in damaged:
        click.echo(printable(f"Damaged, left out: {line}"))
    if not described:
        click.echo(f"Nothing changed: all {len(chosen):,} cells of {index.campaign} are stored.")
    for group in described:
        click.echo(printable(_as_text(group)))
    if len(described) > 1 and needed:
        click.echo(f"In all {_cells(cost['cells'])} to measure, {spent(cost)}.")


def _describe(key: tuple, members: list[tuple[str, str, str, Estimate]]) -> dict[str, Any]:
    from kvfrontier.cli._cost import total

    state, why, reason, changes = key
    cost = total(member[-1] for member in members)
    return {
        "cells": len(members),
        "state": state,
        "why": why,
        "reason": reason,
        "cost": cost.as_dict() if state == "measure" else None,
        "changes": {part: {"before": before, "now": now} for part, (before, now) in changes},
        "examples": [
            {"cell_id": cell_id, "fingerprint": fingerprint, "cell": json.loads(cell)}
            for cell_id, fingerprint, cell, _ in members[:3]
        ],
    }


def _as_text(group: Mapping[str, Any]) -> str:
    from kvfrontier.cli._cost import spent
    from kvfrontier.plan.cell import Cell

    verbs = {"measure": "to measure", "stored": "stored", "unsupported": "cannot run"}
    cost = f" ({spent(group['cost'])})" if group["cost"] else ""
    lines = [f"{_cells(group['cells'])} {verbs[group['state']]}: {group['why']}{cost}"]
    examples = [(item["cell_id"], Cell.from_dict(item["cell"])) for item in group["examples"]]
    for part, change in list(group["changes"].items())[:SHOWN]:
        lines.append(f"    {part}: {change['before']} -> {change['now']}")
        lines += wrap(_sources(part, examples[0][1]), WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    for cell_id, cell in examples:
        where = f"{cell.model}, {cell.strategy.label}, {cell.workload.label}, seed {cell.seed}"
        lines.append(f"    e.g. {cell_id}  {where}")
    return "\n".join(lines)


def _sources(part: str, cell: Cell) -> str:
    """The files whose code a part is: a change may lie in any of them."""
    from kvfrontier.plan.fingerprint import code_modules

    modules = code_modules(part, cell)
    return f"code of {', '.join(name.partition('.')[2] for name in modules)}" if modules else ""


def _cells(count: int) -> str:
    return f"{count:,} {'cell' if count == 1 else 'cells'}"
