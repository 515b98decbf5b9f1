"""`kvfrontier env`: environments of engines that cannot share the core's packages; without arguments, list them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click

NVIDIA = Path("/proc/driver/nvidia")


@click.group(name="env", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Make and list the environments of engines that need other packages than the core's (pinned in envs/NAME.txt).

    They lie in the user's cache ($KVFRONTIER_CACHE, or ~/.cache/kvfrontier), and Ray runs such an engine's cells with
    their Python. Without one, its cells are rows `unsupported`.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_all)


@command.command("make")
@click.argument("name", required=False)
@click.option("--for", "campaign", metavar="CAMPAIGN", help="All that this campaign's engines need, and only those.")
def make_some(name: str | None, campaign: str | None) -> None:
    """Make environment NAME, once. Of an engine that has one for each kind of device, this machine's: `vllm`.

    \b
    kvfrontier env make vllm
    kvfrontier env make --for study_systems_small
    """
    import logging
    import sys

    from kvfrontier.errors import ConfigError, Problem, did_you_mean
    from kvfrontier.plan.environment import PINS, environments
    from kvfrontier.sources.environment import make

    if (name is None) == (campaign is None):
        raise click.UsageError(
            "either the name of an environment or --for CAMPAIGN; `kvfrontier env list` has the names"
        )
    logger = logging.getLogger("kvfrontier")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stderr))
    known = {environment.name: environment for environment in environments()}
    for wanted in needed_by(campaign) if campaign else [this_machines(name, known)]:
        if wanted not in known:
            expected = f"one of {', '.join(known)}" if known else f"a file of pins in {PINS}"
            raise ConfigError([Problem("envs", "(name)", f"'{wanted}'", expected, did_you_mean(wanted, known))])
        if name or not known[wanted].is_made:
            click.echo(f"environment {wanted}: {make(known[wanted])}")


@command.command("list")
def list_all() -> None:
    """Say which environments there are, and whether they are made."""
    from kvfrontier.plan.environment import environments

    for environment in environments():
        state = environment.folder if environment.is_made else f"not made: {environment.recipe}"
        click.echo(f"{environment.name}: {state}")


def needed_by(campaign: str) -> list[str]:
    """Names of the environments in which cells of a campaign would run, but for the core's."""
    from kvfrontier.plan.campaign import load_campaign
    from kvfrontier.plan.environment import CORE
    from kvfrontier.plan.project import Project

    read = load_campaign(Project.find(), campaign)
    engines, devices = (read.choices.options[section] for section in ("engine", "device"))
    found = {engine.plugin.environment_on(read.devices[device.label]) for engine in engines for device in devices}
    return sorted(found - {CORE})


def this_machines(name: str, known: Collection[str]) -> str:
    """`vllm` as `vllm-cuda` where there is an NVIDIA driver, else `vllm-cpu`; every other name as it is."""
    here = f"{name}-{'cuda' if NVIDIA.exists() else 'cpu'}"
    return here if name not in known and here in known else name
