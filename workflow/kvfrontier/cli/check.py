"""`kvfrontier check CAMPAIGN`: did every cell come to something final that is not a failure?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from kvfrontier.errors import printable

SHOWN = 20


@click.command()
@click.argument("campaign")
@click.option("--receipt", type=click.Path(path_type=Path), help="File to write when all is well.")
def command(campaign: str, receipt: Path | None) -> None:
    """Count the cells of CAMPAIGN by status. Exits with 1 when some failed (error, timeout) or have no row yet.

    `unsupported`, `infeasible` and `oom` are answers, not failures.
    """
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.plan.disk import read_index
    from kvfrontier.run.verdict import log_command, verdict
    from kvfrontier.store.files import write_atomically

    index = read_index(results_of(campaign))
    found = verdict(index.campaign_dir)
    for line in found.damaged:
        click.echo(printable(f"damaged, left out: {line}"), err=True)
    click.echo(f"{index.campaign}: {_counted(found.counts)}", err=True)
    for failed in found.failures[:SHOWN]:
        click.echo(printable(f"  {failed.status}: {failed.label}: {failed.reason}"), err=True)
        click.echo(f"    log: {log_command(index.campaign, failed.cell_id)}", err=True)
    if len(found.failures) > SHOWN:
        click.echo(f"  and {len(found.failures) - SHOWN} more", err=True)
    if found.failures:
        final = sum(failed.stored.is_final(index.max_attempts) for failed in found.failures)
        retried = len(found.failures) - final
        click.echo(f"  the next run tries {retried} of them again; {final} had their last attempt", err=True)
    if found.failures or found.counts["planned"]:
        raise SystemExit(1)
    if receipt is not None:
        write_atomically(receipt, f"{_counted(found.counts)}\n".encode())


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no cells"
