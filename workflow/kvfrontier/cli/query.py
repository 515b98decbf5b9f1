"""`kvfrontier query`: SQL over a published campaign."""

from __future__ import annotations

from pathlib import Path

import click

ROWS_SHOWN = 200


@click.command("query", options_metavar="[--format ...] [--out FILE]")
@click.argument("words", nargs=-1, metavar="[CAMPAIGN] SQL")
@click.option("--format", "kind", type=click.Choice(["table", "csv", "json", "parquet"]), default="table")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file, not to the terminal.")
@click.option(
    "--with",
    "brought",
    multiple=True,
    metavar="NAME=FILE",
    help="Let SQL read this file as NAME: .csv, .tsv, .parquet, .json, or a .duckdb with its tables as NAME.cells, ...",
)
@click.option("--fresh", "choice", flag_value="fresh", help="With every row there is now, however short ago one asked.")
@click.option("--published", "choice", flag_value="published", help="The published database, whatever has come since.")
def command(words: tuple[str, ...], kind: str, out: Path | None, brought: tuple[str, ...], choice: str | None) -> None:
    """Ask the database of a campaign in SQL (read-only; it reaches no file but those of --with, and no network).

    While cells are being measured it is asked of the rows that there are, and a line on stderr says how far that is.

    \b
    kvfrontier query "SELECT strategy, budget, status FROM cells"
    kvfrontier query "SELECT table_name, comment FROM duckdb_tables()"
    kvfrontier query --with price=prices.csv "FROM frontier JOIN price USING (model)"
    """
    from kvfrontier.cli._campaign import estimator, results_of
    from kvfrontier.cli._table import text_table
    from kvfrontier.store.files import write_atomically
    from kvfrontier.store.live import open_current
    from kvfrontier.store.query import FORMATS, ask, shown_as

    if len(words) not in (1, 2):
        raise click.UsageError(
            "give one SQL text in quotes, with the campaign's name before it if it is not the default"
        )
    if kind == "parquet" and out is None:
        raise click.UsageError("--format parquet needs --out FILE")
    *campaign, sql = words
    folder = results_of(campaign[0] if campaign else None)
    with open_current(folder, estimator(folder), choice or "auto", _files(brought)) as current:
        line = current.line(folder.name)
        if line:
            click.echo(line, err=True)
        table = ask(current.connection, sql)
    with shown_as(kind):
        if kind == "table":
            text = text_table(table.column_names, (row.values() for row in table.slice(0, ROWS_SHOWN).to_pylist()))
            more = table.num_rows - ROWS_SHOWN
            answer = (text + (f"\n{more} more rows: --format csv shows all" if more > 0 else "") + "\n").encode()
        else:
            answer = FORMATS[kind](table)
    if out is None:
        click.echo(answer, nl=False)
    else:
        write_atomically(out, answer)


def _files(brought: tuple[str, ...]) -> dict[str, Path]:
    files = {}
    for word in brought:
        name, is_pair, path = word.partition("=")
        if not (name and is_pair and path):
            raise click.UsageError(f"--with '{word}': expected NAME=FILE, such as price=prices.csv")
        files[name] = Path(path).expanduser()
    return files
