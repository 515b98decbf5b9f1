"""`kvfrontier explain [CAMPAIGN]`: why cells would be measured again."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

SHOWN = 20


@click.command()
@click.argument("campaign", required=False)
@click.option("--cell", "prefix", default="", help="Only cells whose cell_id or fingerprint starts with this.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: one object a group of cells.")
def command(campaign: str | None, prefix: str, as_json: bool) -> None:
    """Say for each stale or missing cell of CAMPAIGN [the default one] what changed since it was measured.

    Cells are grouped by what changed; a change names the part (code, model, data, package) before and now.
    """
    from kvfrontier.plan.disk import prepare, read_cells
    from kvfrontier.plan.project import Project
    from kvfrontier.store.running import keep_plan_of_run
    from kvfrontier.store.standing import standings

    project = Project.find()
    index = prepare(project, campaign, keep_plan_of_run)
    plan = read_cells(index.campaign_dir)
    found, damaged = standings(plan, index.campaign_dir, index.max_attempts, project.settings.fingerprint.ignore)
    names = ("cell_id", "fingerprint", "cell")
    cells = zip(*(plan.column(name).to_pylist() for name in names), found, strict=True)
    chosen = [cell for cell in cells if cell[0].startswith(prefix) or cell[1].startswith(prefix)]
    if prefix and not chosen:
        raise click.UsageError(f"no cell of {index.campaign} has a cell_id or fingerprint that starts with '{prefix}'")
    groups: dict[tuple, list] = {}
    for *cell, standing in chosen:
        if standing.state != "stored" or prefix:
            key = (standing.state, standing.reason, tuple(sorted(standing.changes.items())))
            groups.setdefault(key, []).append(cell)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    described = [_describe(key, members) for key, members in ordered]
    if as_json:
        click.echo(json.dumps({"campaign": index.campaign, "groups": described, "damaged": damaged}, indent=2))
        return
    for line in damaged:
        click.echo(f"Damaged, left out: {line}")
    if not described:
        click.echo(f"Nothing changed: all {len(chosen):,} cells of {index.campaign} are stored.")
    for group in described:
        click.echo(_as_text(group))


def _describe(key: tuple, members: list) -> dict:
    state, reason, changes = key
    return {
        "cells": len(members),
        "state": state,
        "reason": reason,
        "changes": {part: {"before": before, "now": now} for part, (before, now) in changes},
        "examples": [
            {"cell_id": cell_id, "fingerprint": fingerprint, "cell": json.loads(cell)}
            for cell_id, fingerprint, cell in members[:3]
        ],
    }


def _as_text(group: Mapping) -> str:
    from kvfrontier.plan.cell import Cell

    verbs = {"measure": "to measure", "stored": "stored", "unsupported": "cannot run"}
    cells = f"{group['cells']:,} {'cell' if group['cells'] == 1 else 'cells'}"
    lines = [f"{cells} {verbs[group['state']]}: {group['reason']}"]
    lines += [
        f"    {part}: {change['before']} -> {change['now']}" for part, change in list(group["changes"].items())[:SHOWN]
    ]
    for example in group["examples"]:
        cell = Cell.from_dict(example["cell"])
        where = f"{cell.model}, {cell.strategy.label}, {cell.workload.label}, seed {cell.seed}"
        lines.append(f"    e.g. {example['cell_id']}  {where}")
    return "\n".join(lines)
