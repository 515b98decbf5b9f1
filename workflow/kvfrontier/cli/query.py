"""`kvfrontier query`: SQL over a published campaign."""

from __future__ import annotations

from pathlib import Path

import click

ROWS_SHOWN = 200


@click.command("query", options_metavar="[--format ...] [--out FILE]")
@click.argument("words", nargs=-1, metavar="[CAMPAIGN] SQL")
@click.option("--format", "kind", type=click.Choice(["table", "csv", "json", "parquet"]), default="table")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file, not to the terminal.")
def command(words: tuple[str, ...], kind: str, out: Path | None) -> None:
    """Ask the published database of a campaign in SQL (read-only).

    \b
    kvfrontier query "SELECT strategy, budget, status FROM cells"
    kvfrontier query "SELECT table_name, comment FROM duckdb_tables()"
    """
    from kvfrontier.cli._campaign import results_of
    from kvfrontier.cli._table import text_table
    from kvfrontier.store.files import write_atomically
    from kvfrontier.store.query import FORMATS, ask, open_database

    if len(words) not in (1, 2):
        raise click.UsageError(
            "give one SQL text in quotes, with the campaign's name before it if it is not the default"
        )
    *campaign, sql = words
    with open_database(results_of(campaign[0] if campaign else None)) as connection:
        table = ask(connection, sql)
    if kind == "table":
        text = text_table(table.column_names, (row.values() for row in table.slice(0, ROWS_SHOWN).to_pylist()))
        more = table.num_rows - ROWS_SHOWN
        answer = (text + (f"\n{more} more rows: --format csv shows all" if more > 0 else "") + "\n").encode()
    elif kind == "parquet" and out is None:
        raise click.UsageError("--format parquet needs --out FILE")
    else:
        answer = FORMATS[kind](table)
    if out is None:
        click.echo(answer, nl=False)
    else:
        write_atomically(out, answer)
