"""`kvfrontier report`: the page and its figures."""

from __future__ import annotations

import click


@click.command("report")
@click.argument("campaign", required=False)
def command(campaign: str | None) -> None:
    """Draw results/CAMPAIGN/report.html and figures/ from the published database."""
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.reports.page import write_report

    click.echo(str(write_report(results_of(campaign))))
