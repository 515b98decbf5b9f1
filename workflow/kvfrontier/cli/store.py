"""`kvfrontier store`: publish a campaign's database."""

from __future__ import annotations

import click


@click.command("store")
@click.argument("campaign", required=False)
def command(campaign: str | None) -> None:
    """Build results/CAMPAIGN/CAMPAIGN.duckdb from the plan and the stored rows."""
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.run.watch import stoppable
    from kvfrontier.store.database import build_database

    with stoppable():  # once its Snakemake is dead it must not overwrite what the next one publishes
        click.echo(str(build_database(results_of(campaign))))
