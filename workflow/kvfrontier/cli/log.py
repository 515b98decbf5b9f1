"""`kvfrontier log [CELL] [CAMPAIGN]`: why a cell came out as it did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from kvfrontier.run.cell_log import CellRecord, Failure

LATEST = 10


@click.command("log")
@click.argument("words", nargs=-1, metavar="[CELL] [CAMPAIGN]")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """Show what is known of CELL: what it is, what came of it and why, and the lines of the logs around it.

    CELL is the beginning of a cell_id or of a fingerprint. Without it: the latest failures, each with the command
    that shows more. A single word that is a campaign's name is one.
    """
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.run.cell_log import find_cell

    if len(words) > 2:
        raise click.UsageError("give at most a cell and a campaign: kvfrontier log CELL CAMPAIGN")
    prefix, campaign = _sorted_out(words)
    folder = results_of(campaign)
    if prefix is None:
        found = _failures(folder)
        text = json.dumps([_as_dict(item._asdict()) for item in found], indent=2) if as_json else _list(folder, found)
    else:
        record = find_cell(folder, prefix)
        text = json.dumps(_record_dict(record), indent=2) if as_json else _tell(record)
    click.echo(text)


def _sorted_out(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """CELL and CAMPAIGN."""
    from kvfrontier.cli._campaign import has_results
    from kvfrontier.errors import ConfigError
    from kvfrontier.plan.project import Project

    if len(words) != 1:
        return (words[0], words[1]) if words else (None, None)
    project = Project.find()
    try:
        project.campaign_file(words[0])
    except ConfigError:
        if not has_results(project, words[0]):
            return words[0], None
    return None, words[0]


def _failures(folder: Path) -> list[Failure]:
    from kvfrontier.plan.disk import read_cells
    from kvfrontier.run.cell_log import latest_failures
    from kvfrontier.store.newest import Newest

    return latest_failures(read_cells(folder), Newest(folder).read(), LATEST)


def _list(folder: Path, found: list[Failure]) -> str:
    from kvfrontier.cli._table import one_line
    from kvfrontier.run.verdict import log_command

    if not found:
        return f"{folder.name}: no cell has failed. How far it is: kvfrontier watch {folder.name} --once"
    lines = []
    for failure in found:
        lines.append(f"{failure.started_at:%Y-%m-%d %H:%M:%S} UTC  {failure.status}: {failure.label}")
        lines.append(f"  {one_line(failure.reason)}" if failure.reason else "  (no reason was given)")
        lines.append(f"  {log_command(folder.name, failure.cell_id)}")
    return "\n".join(lines)


def _tell(record: CellRecord) -> str:
    from kvfrontier.cli._table import printable
    from kvfrontier.run.verdict import label
    from kvfrontier.units import format_seconds

    row, facts = record.row, record.provenance
    told = [("cell", record.cell_id), ("fingerprint", row.get("fingerprint") or record.planned.get("fingerprint"))]
    told += [("what", f"{label(record.cell)}, on {record.cell.device}"), ("status", record.status)]
    if not record.planned:
        told.append(("note", "no longer planned: a row of an older campaign or code"))
    elif row and row["fingerprint"] != record.planned["fingerprint"]:
        told.append(("note", "the row is of an older version; kvfrontier explain --cell says what changed"))
    if record.in_flight_since:
        told.append(("in flight", f"since {record.in_flight_since:%Y-%m-%d %H:%M:%S} UTC"))
    why = row.get("reason") or record.planned.get("reason")
    told += [("reason", why), ("class", row.get("reason_class")), ("phase", row.get("reason_phase"))]
    if row:
        told.append(("attempt", f"{row['attempt']} ({record.rows} {'row' if record.rows == 1 else 'rows'} stored)"))
        took = "" if row["wall_s"] is None else f", took {format_seconds(row['wall_s'])}"
        told.append(("started", f"{row['started_at']:%Y-%m-%d %H:%M:%S} UTC{took}"))
    told += [("host", facts.get("host")), ("node", facts.get("node")), ("Slurm job", facts.get("slurm_job_id"))]
    told += [("code", facts.get("git_revision")), ("log", record.log), ("Slurm log", record.slurm_log)]
    lines = [f"{name:<12} {printable(value)}" for name, value in told if value]
    if row.get("reason_detail"):
        lines += ["", *(printable(line) for line in row["reason_detail"].rstrip().splitlines())]
    if record.lines:
        lines += ["", f"{record.log}:", *(f"  {printable(line)}" for line in record.lines)]
    return "\n".join(lines)


def _record_dict(record: CellRecord) -> dict[str, Any]:
    row = {**record.row, "provenance": record.provenance} if record.row else None
    paths = {"log": record.log, "slurm_log": record.slurm_log, "lines": list(record.lines)}
    known = {"cell_id": record.cell_id, "cell": record.cell.as_dict(), "status": record.status, "row": row}
    return _as_dict({**known, "planned": dict(record.planned), "in_flight_since": record.in_flight_since, **paths})


def _as_dict(values: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values, default=str))
