"""`kvfrontier schema`: the schemas that editors complete config files from."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("name", required=False)
@click.option(
    "--check", is_flag=True, help="Write nothing; exit with 1 when a file under workflow/schemas is out of date."
)
def command(name: str | None, check: bool) -> None:
    """Write workflow/schemas/*.schema.json from the code; or print the schema NAME (campaign, config, models, ...)."""
    import kvfrontier
    from kvfrontier.errors import did_you_mean
    from kvfrontier.plan.schema import schemas

    texts = {file: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for file, schema in schemas().items()}
    if name is not None:
        known = [file.removesuffix(".schema.json") for file in texts]
        if name not in known:
            raise click.UsageError(f"no schema '{name}': one of {', '.join(known)}. {did_you_mean(name, known)}")
        click.echo(texts[f"{name}.schema.json"], nl=False)
        return
    folder = Path(kvfrontier.__file__).parents[1] / "schemas"
    stale = [file for file, text in texts.items() if not _is(folder / file, text)]
    if check and stale:
        click.echo(f"out of date: {', '.join(stale)}; run `kvfrontier schema`", err=True)
        raise SystemExit(1)
    for file in stale:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(texts[file], encoding="utf-8")
        click.echo(f"wrote {folder / file}")
    if not stale:
        click.echo("all schemas are up to date")


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
