"""`kvfrontier report`: the page and its figures."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("campaign", required=False)
@click.option("--live", is_flag=True, help="From the rows there are now; the page says how far the campaign is.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page here, from the rows there are now [results/CAMPAIGN/report.html, or live.html with --live].",
)
def command(campaign: str | None, live: bool, out: Path | None) -> None:
    """Draw results/CAMPAIGN/report.html and figures/ from the published database.

    With --live or --out: one page from what is stored so far, also while the campaign is being measured.
    """
    from kvfrontier.cli._campaign import estimator, results_of
    from kvfrontier.reports.page import write_live_report, write_report
    from kvfrontier.run.watch import stoppable

    folder = results_of(campaign)
    if live or out is not None:
        click.echo(str(write_live_report(folder, out or folder / "live.html", estimator(folder))))
    else:
        with stoppable():  # once its Snakemake is dead it must not overwrite what the next one draws
            click.echo(str(write_report(folder)))
