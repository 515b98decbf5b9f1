"""`kvfrontier`: one module a command, found by file name and imported when it is called."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import click

from kvfrontier import __version__
from kvfrontier.errors import KVFrontierError, did_you_mean, printable


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
        "".join(sys.argv).encode()
    except UnicodeEncodeError:  # bytes that are no text reach us as half characters, which nothing takes
        _complain("an argument is no text in UTF-8")
        sys.exit(2)
    try:
        kvfrontier(standalone_mode=True)
    except KVFrontierError as error:
        _complain(error)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that is a file: its words say enough
        _complain(error)
        sys.exit(1)
    except _database_errors() as error:
        _complain(f"the database cannot be read ({error}); `kvfrontier store CAMPAIGN` makes it again from the rows")
        sys.exit(1)


def _database_errors() -> tuple[type[Exception], ...]:
    """DuckDB's own errors, if it is loaded at all: it finds damage within a file only where it reads it."""
    duckdb = sys.modules.get("duckdb")
    return (duckdb.Error,) if duckdb else ()


def _complain(error: Exception | str) -> None:
    """A message may quote an address with a login in it, and batch systems keep what is printed."""
    from kvfrontier.run.redact import redact

    click.echo(f"kvfrontier: {redact(printable(str(error)))}", err=True)
