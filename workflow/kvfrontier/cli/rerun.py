"""`kvfrontier rerun FINGERPRINT`: measure a stored row once more, from the row alone, and compare."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvfrontier.errors import printable

if TYPE_CHECKING:
    from kvfrontier.analysis.compare import Change
    from kvfrontier.run.rerun import Rerun

DEFAULT_TIMEOUT_S = 600.0


@click.command()
@click.argument("fingerprint")
@click.option("--campaign", help="Look in the results of this campaign alone [all results].")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Seconds the cell may run [as its campaign's plan says, else {DEFAULT_TIMEOUT_S:g}].",
)
@click.option(
    "--times",
    type=click.FloatRange(min=1),
    default=2.0,
    show_default=True,
    help="Factor by which times may differ on the same machine.",
)
@click.option("--dry-run", is_flag=True, help="Say what differs from the row, and run nothing.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the new row to this Parquet file.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the row's model.")
def command(
    fingerprint: str,
    campaign: str | None,
    timeout_s: float | None,
    times: float,
    dry_run: bool,
    out: Path | None,
    trust_remote_code: bool,
) -> None:
    """Reproduce the stored row whose FINGERPRINT begins so. Nothing is stored.

    The cell, its model, device and data come from the row: neither the campaign's file nor config/models.yaml is asked.
    First it says what differs from the row (code, packages, machine), then it runs the cell in a process of its own.

    Reproduced (exit code 0): the same status, counts and bytes; what a model says but for rounding; on the same
    machine, times within a factor. Otherwise the exit code is 1.
    """
    from kvfrontier.plan.project import Project
    from kvfrontier.run.rerun import CannotRerun, Rerun, plain_row
    from kvfrontier.run.watch import Stopped, stoppable
    from kvfrontier.store.selection import find_rows

    project = Project.find()
    row = plain_row(max(find_rows(project, fingerprint, campaign).to_pylist(), key=lambda row: row["started_at"]))
    with tempfile.TemporaryDirectory(prefix="kvfrontier-rerun-") as folder:
        rerun = Rerun(row, project, Path(folder))
        limit_s = timeout_s or _timeout_of(project.campaign_dir(row["campaign"]))
        click.echo(printable(_heading(rerun)))
        click.echo(printable(_differences(rerun)))
        if rerun.runs_remote_code and not trust_remote_code:
            raise CannotRerun("the row's model comes with Python code of its own: --trust-remote-code runs it.")
        if dry_run:
            return
        click.echo(f"\nRunning it in a process of its own, for at most {limit_s:g} s ...")
        try:
            with stoppable():
                rerun.fetch()
                again = rerun.run(limit_s)
        except Stopped as stopped:
            click.echo(str(stopped).partition(".")[0], err=True)
            raise SystemExit(130) from None
        if out is not None:
            _write(again, out)
        raise SystemExit(0 if _report(row, again, times) else 1)


def _timeout_of(campaign_dir: Path) -> float:
    from kvfrontier.errors import Unavailable
    from kvfrontier.plan.disk import read_index

    try:
        return read_index(campaign_dir).timeout_s
    except Unavailable:
        return DEFAULT_TIMEOUT_S


def _heading(rerun: Rerun) -> str:
    row, cell = rerun.row, rerun.cell
    when = f"{row['started_at']:%Y-%m-%d %H:%M} UTC on {row['provenance'].get('host', 'an unknown host')}"
    reason = f" ({row['reason']})" if row["reason"] else ""
    return (
        f"Row   {row['fingerprint']} of campaign {row['campaign']}, measured {when}\n"
        f"Cell  {cell.model}, {cell.engine.label}, {cell.device}, {cell.strategy.label}, {cell.workload.label}, "
        f"seed {cell.seed}\n"
        f"Was   {row['status']}{reason}"
    )


def _differences(rerun: Rerun) -> str:
    from kvfrontier.cli._table import text_table

    found = rerun.differences()
    if not found:
        return "\nThe same code version, packages, inputs and machine as the row's."
    computing = [item for item in found if item.kind == "code" and item.name != "git_revision"]
    lines = ["\nNot as it was:", text_table(("differs", "what", "row", "now"), found, widest=64)]
    if computing:
        lines.append(f"The code that computes this cell is another one. {rerun.code_hint}")
    elif any(item.kind == "code" for item in found):
        lines.append("The commit is another one, but the code that computes this cell is the same.")
    return "\n".join(lines)


def _report(row: dict[str, Any], again: dict[str, Any], times: float) -> bool:
    """Print numbers and verdict."""
    from kvfrontier.analysis.compare import compare
    from kvfrontier.analysis.reproduction import is_timed, judge
    from kvfrontier.cli._table import text_table
    from kvfrontier.store.rows import as_table

    table = as_table(row)
    found = compare(table, as_table(again).cast(table.schema), by="")
    if found.by_cell:
        header = ("metric", "values", "row", "now", "change", "95 % interval", "verdict")
        order = sorted(found.by_cell, key=lambda change: (is_timed(change), change.metric, change.place))
        click.echo(f"\n{text_table(header, [_line(change) for change in order])}")
    verdict = judge(row, again, found, times)
    status = again["status"] + (f": {again['reason']}" if again["reason"] else "")
    click.echo(f"\nNow   {status}")
    for line in verdict.remarks:
        click.echo(printable(f"Note  {line}"))
    for line in verdict.reasons:
        click.echo(printable(f"Not   {line}"))
    click.echo("Reproduced." if verdict.is_reproduced else "Not reproduced.")
    return verdict.is_reproduced


def _line(change: Change) -> tuple[Any, ...]:
    from kvfrontier.analysis.reproduction import is_timed
    from kvfrontier.cli._comparison import columns, name

    _, before, now, size, interval, _, _, verdict = columns(change)
    if not is_timed(change):
        verdict = f"{change.differing} of {change.n} differ" if change.differing else "equal"
    return name(change), change.n, before, now, size, interval, verdict


def _write(row: dict[str, Any], out: Path) -> None:
    from kvfrontier.store.files import write_atomically
    from kvfrontier.store.query import as_parquet
    from kvfrontier.store.rows import as_table

    write_atomically(out.absolute(), as_parquet(as_table(row)))
