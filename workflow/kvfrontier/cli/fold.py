"""`kvfrontier fold CAMPAIGN`: gather loose rows by hand."""

from __future__ import annotations

import click

from kvfrontier.errors import printable


@click.command()
@click.argument("campaign")
@click.argument("shards", nargs=-1)
def command(campaign: str, shards: tuple[str, ...]) -> None:
    """Fold the loose rows of SHARDS (all, if none is named) into parts and write their ledgers again. Measures nothing.

    `kvfrontier measure` does this by itself at its end; here it is for looking at what an interrupted run has so far.
    """
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.plan.disk import read_index, read_shard
    from kvfrontier.store.fold import fold
    from kvfrontier.store.ledger import drop_untrue, shard_lock
    from kvfrontier.store.lock import held
    from kvfrontier.store.running import is_running

    index = read_index(results_of(campaign))
    for shard in shards or [shard.name for shard in index.shards]:
        fingerprints = [cell.fingerprint for cell in read_shard(index.campaign_dir, shard)]
        # Its rows change while a shard is measured: one that was read must not take a newer one with it.
        with held(shard_lock(index.campaign_dir, shard), f"measuring {shard}", lambda line: click.echo(line, err=True)):
            fold(index.campaign_dir, shard, fingerprints)
    if is_running(index.campaign_dir):
        return
    for line in drop_untrue(index.campaign_dir, index.shards, index.max_attempts):
        click.echo(printable(f"still to measure: {line}"))
