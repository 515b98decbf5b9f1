"""`kvfrontier paired CAMPAIGN`: its strategies against one of them, on the same items."""

from __future__ import annotations

import csv
import io
import json
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from kvfrontier.errors import printable

if TYPE_CHECKING:
    from kvfrontier.analysis.paired import Paired

STRATEGY_CHARS, COLUMNS, MOST_LINES = 72, 110, 400


@click.command()
@click.argument("campaign", required=False)
@click.option(
    "--against",
    multiple=True,
    metavar="STRATEGY",
    help="Its name, its label, or a part of the label that no other has [what the campaign says, else full].",
)
@click.option("--metric", "metrics", multiple=True, help="Any metric with a value for each item [those of quality].")
@click.option("--by-phase", is_flag=True, help="Each place of the fact (each phase) by itself, too.")
@click.option("--format", "kind", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="False alarms that are acceptable, after correction for all lines of a table.",
)
def command(
    campaign: str | None, against: tuple[str, ...], metrics: tuple[str, ...], by_phase: bool, kind: str, alpha: float
) -> None:
    """Compare the strategies of one campaign on the same questions and texts: better, worse, or not to be told.

    Other than two intervals side by side, this sees which items one strategy gets right and another does not. (Between
    versions of the code, or campaigns: `kvfrontier compare`.)

    \b
    kvfrontier paired anchors --against h2o --by-phase
    kvfrontier paired anchors --against random --metric retention_correct
    """
    from kvfrontier.analysis.paired import (
        NoItems,
        find_reference,
        measured_by_item,
        paired,
        quality_metrics,
        references,
    )
    from kvfrontier.cli._campaign import estimator, results_of
    from kvfrontier.errors import did_you_mean
    from kvfrontier.store.live import open_current

    folder = results_of(campaign)
    with open_current(folder, estimator(folder)) as current:
        if line := current.line(folder.name):
            click.echo(line, err=True)
        known = measured_by_item(current.connection)
        for name in metrics:
            if name not in known:
                raise NoItems(
                    f"'{name}' has no value for single items here. {did_you_mean(name, known)} "
                    f"Those that have: {', '.join(known) or 'none'}. Times are compared by `kvfrontier compare`"
                )
        chosen = [find_reference(current.connection, said) for said in against] or references(current.connection)
        asked = metrics or quality_metrics(current.connection)
        found = [item for name in chosen for item in paired(current.connection, name, asked, alpha)]
    if kind != "table":
        click.echo((_as_json if kind == "json" else _as_csv)(found), nl=False)
    elif not found:
        click.echo(f"{folder.name}: nothing can be paired: no two strategies answered the same items.")
    else:
        click.echo(printable("\n\n".join([*(_as_text(item, by_phase) for item in found), _how_to_read()])))


def _as_text(found: Paired, by_phase: bool) -> str:
    from kvfrontier.analysis.paired_table import heading, meaning, table
    from kvfrontier.cli._table import text_table

    blocks = [heading(found), f"  {found.workload_label}"]
    for lines in (found.lines, found.by_phase if by_phase else []):
        if lines:
            shown = table(found, lines, most=MOST_LINES)
            blocks.append(text_table(shown.header, shown.rows, widest=STRATEGY_CHARS))
            blocks += [shown.note] if shown.note else []
    return "\n".join([*blocks, *wrap(meaning(found), COLUMNS)])


def _how_to_read() -> str:
    from kvfrontier.analysis.paired_table import HOW_TO_READ

    return "\n".join(line for sentence in HOW_TO_READ for line in wrap(sentence, COLUMNS))


def _rows(found: list[Paired]) -> list[dict]:
    names = ("model", "engine_label", "device", "source", "workload_label", "metric", "reference")
    return [
        {name: getattr(item, name) for name in names} | line._asdict()
        for item in found
        for line in (*item.lines, *item.by_phase)
    ]


def _as_json(found: list[Paired]) -> str:
    return json.dumps(_rows(found), indent=1) + "\n"


def _as_csv(found: list[Paired]) -> str:
    from kvfrontier.analysis.paired import Line

    text = io.StringIO()
    names = ("model", "engine_label", "device", "source", "workload_label", "metric", "reference", *Line._fields)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(found))
    return text.getvalue()
