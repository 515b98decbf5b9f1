"""`kvfrontier measure CAMPAIGN SHARD`: what one Snakemake job runs."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from pathlib import Path

import click


@click.command()
@click.argument("campaign")
@click.argument("shard")
@click.option("--log", type=click.Path(path_type=Path), help="Log file [results/CAMPAIGN/logs/measure/SHARD.log].")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    envvar="KVFRONTIER_WORKERS",
    help="Engine processes at once for cells that are not timed [the campaign's, or cores / threads of the engine].",
)
@click.option(
    "--ray-address",
    default="",
    envvar="KVFRONTIER_RAY_ADDRESS",
    help="A running Ray cluster (host:port, or auto) whose nodes share this file system [a private local Ray].",
)
def command(campaign: str, shard: str, log: Path | None, workers: int | None, ray_address: str) -> None:
    """Measure the cells of SHARD that have no final row yet, one row each.

    Cells that fail become rows too and do not make this command fail; `kvfrontier check CAMPAIGN` does. Ends with
    exit code 130 when stopped: what was measured is kept.
    """
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.plan.disk import read_index, read_shard
    from kvfrontier.plan.project import Project
    from kvfrontier.run.measure import Limits, Shard, measure
    from kvfrontier.run.slurm_job import slurm_job
    from kvfrontier.run.verdict import log_file
    from kvfrontier.run.watch import Stopped, leave_now, stoppable

    folder = results_of(campaign)
    index = read_index(folder)
    cells = read_shard(folder, shard)
    log = log or log_file(folder, shard)
    log_to(log)
    if job := slurm_job():
        logging.getLogger(__name__).info(job)
    try:
        # Ray prints its own account of dead workers to stdout; ours goes to stderr.
        with stoppable(), log.open("a") as rays, redirect_stdout(rays):
            measure(
                Shard(Project.find(), folder, shard, cells),
                Limits(index.timeout_s, index.max_attempts),
                lambda line: click.echo(line, err=True),
                workers or index.workers,
                ray_address,
            )
    except Stopped as stopped:
        click.echo(f"{shard}: {stopped}", err=True)
        leave_now()


def log_to(path: Path) -> None:
    """Append what kvfrontier logs to a file; the terminal keeps the progress line and the summary."""
    from kvfrontier.run.redact import RedactingFormatter
    from kvfrontier.store.files import explained

    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path)
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("kvfrontier")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
