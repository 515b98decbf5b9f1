"""`kvfrontier`: one module a command, found by file name and imported when it is called."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import click

from kvfrontier import __version__
from kvfrontier.errors import KVFrontierError, did_you_mean


class Commands(click.Group):
    """Lists the modules of this package; each holds a click command called `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        return import_module(f"{__name__}.{name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        name = str(args[0])
        if not name.startswith("-") and name not in self.list_commands(ctx):
            ctx.fail(f"there is no command '{name}'. {did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def kvfrontier() -> None:
    """Which KV-cache strategy, at which budget, on your models and your devices?

    A campaign file (config/campaigns/NAME.yaml) says what to measure; `snakemake --profile profiles/local` measures
    it; these commands plan, ask and explain. CAMPAIGN is a name under config/campaigns or a path to a YAML file.
    """


def main() -> None:
    """Entry point: errors of the user (exit code 2) and of the disk (1) are printed without a traceback."""
    try:
        kvfrontier(standalone_mode=True)
    except KVFrontierError as error:
        click.echo(f"kvfrontier: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that is a file: its words say enough
        click.echo(f"kvfrontier: {error}", err=True)
        sys.exit(1)
