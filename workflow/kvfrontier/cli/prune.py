"""`kvfrontier prune [CAMPAIGN]`: delete stored rows and files that nothing refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from kvfrontier.plan.project import Project
    from kvfrontier.store.prune import Tally


@click.command()
@click.argument("campaign", required=False)
@click.option("--all", "everything", is_flag=True, help="All campaigns that have results.")
@click.option("--attempts", is_flag=True, help="Also earlier attempts at planned cells that were tried again.")
@click.option("--logs", is_flag=True, help="Also logs of shards that are not planned any more.")
@click.option(
    "--folders", is_flag=True, help="Only with --all: whole results of campaigns that no file names any more."
)
@click.option("--yes", is_flag=True, help="Delete. Without it, only say what would go.")
def command(campaign: str | None, everything: bool, attempts: bool, logs: bool, folders: bool, yes: bool) -> None:
    """Show what nothing refers to in the results of CAMPAIGN [the default one]; with --yes, delete it.

    That is: rows of versions (code, packages, weights, parameters) that the plan does not hold any more, files set
    aside as damaged, and what killed processes left. Rows of planned cells stay, and so does the newest row of a cell
    whose planned version is not measured yet. `compare` and `history` lose what is deleted.
    """
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.plan.project import Project

    if campaign and everything:
        raise click.UsageError("give one CAMPAIGN or --all")
    if folders and not everything:
        raise click.UsageError("--folders needs --all")
    project = Project.find()
    found = _of_all(project) if everything else [(results_of(campaign), False)]
    going = 0
    for folder, is_orphan in found:
        if is_orphan and not folders:
            click.echo(f"{folder.name}: no campaign file names it; left alone (--folders takes all of it)\n")
            continue
        tally = _handle(folder, is_orphan, attempts, logs, yes)
        going += sum(tally.bytes.values())
        click.echo(f"{_as_text(folder.name, tally, yes)}\n")
    click.echo(_last_word(going, yes))


def _of_all(project: Project) -> list[tuple[Path, bool]]:
    """Every folder of results, and whether no campaign file names it; what a killed removal left is such a one."""
    from kvfrontier.store.prune import PRUNED
    from kvfrontier.store.selection import results_folders

    named = set(project.campaign_names().values())
    folders = [*results_folders(project), *sorted(project.results.glob(f"{PRUNED}*"))]
    return [(folder, folder.name not in named) for folder in folders]


def _handle(folder: Path, is_orphan: bool, attempts: bool, logs: bool, yes: bool) -> Tally:
    from kvfrontier.store import prune

    if is_orphan:
        return prune.remove_folder(folder) if yes else prune.folder_tally(folder)
    return prune.prune(folder, attempts, logs) if yes else prune.survey(folder, attempts, logs).tally


def _as_text(name: str, tally: Tally, yes: bool) -> str:
    from kvfrontier.store.prune import KINDS
    from kvfrontier.units import format_bytes

    verb = "deleted" if yes else "would go"
    lines = [
        f"{tally.counts[kind]:8,}  {format_bytes(tally.bytes[kind]):>10}  {kind}"
        for kind in KINDS
        if kind in tally.counts
    ]
    kept = f"{tally.kept_rows:8,}  rows stay"
    if tally.last_known:
        kept += f", {tally.last_known:,} of them of older versions: their cells have no current row yet"
    return "\n".join([f"{name}: {verb if lines else 'nothing to delete'}", *lines, kept])


def _last_word(going: int, yes: bool) -> str:
    from kvfrontier.units import format_bytes

    if not going:
        return "Nothing to delete."
    if yes:
        return "`kvfrontier store CAMPAIGN` builds the database anew, without what was deleted."
    return f"Nothing was deleted. --yes deletes {format_bytes(going)}."
