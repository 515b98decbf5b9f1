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
@click.argument("name")
def make_one(name: str) -> None:
    """Make environment NAME, once. Of an engine that has one for each kind of device, this machine's: `vllm`."""
    import logging
    import sys

    from kvfrontier.errors import ConfigError, Problem, did_you_mean
    from kvfrontier.plan.environment import PINS, environments
    from kvfrontier.sources.environment import make

    logger = logging.getLogger("kvfrontier")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stderr))
    known = {environment.name: environment for environment in environments()}
    name = this_machines(name, known)
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else f"a file of pins in {PINS}"
        raise ConfigError([Problem("envs", "(name)", f"'{name}'", expected, did_you_mean(name, known))])
    click.echo(f"environment {name}: {make(known[name])}")


@command.command("list")
def list_all() -> None:
    """Say which environments there are, and whether they are made."""
    from kvfrontier.plan.environment import environments

    for environment in environments():
        state = environment.folder if environment.is_made else f"not made: {environment.recipe}"
        click.echo(f"{environment.name}: {state}")


def this_machines(name: str, known: Collection[str]) -> str:
    """`vllm` as `vllm-cuda` where there is an NVIDIA driver, else `vllm-cpu`; every other name as it is."""
    here = f"{name}-{'cuda' if NVIDIA.exists() else 'cpu'}"
    return here if name not in known and here in known else name
