"""`kvfrontier frontier`: the choice as a compact table."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

import click

from kvfrontier.errors import printable

if TYPE_CHECKING:
    from kvfrontier.analysis.frontier import Group
    from kvfrontier.analysis.side_by_side import SideBySide

COLUMNS, STRATEGY_CHARS = 100, 34


@click.command("frontier")
@click.argument("campaign", required=False)
def command(campaign: str | None) -> None:
    """Strategies side by side: memory, retention, answers to tasks, fidelity, speed, and which are not dominated."""
    from kvfrontier.analysis.frontier import compare, count_by_status
    from kvfrontier.analysis.side_by_side import side_by_side
    from kvfrontier.cli._campaign import estimator, results_of
    from kvfrontier.store.live import open_current

    folder = results_of(campaign)
    with open_current(folder, estimator(folder)) as current:
        line = current.line(folder.name)
        if line:
            click.echo(line, err=True)
        groups, counts = compare(current.connection), count_by_status(current.connection)
        comparisons = side_by_side(current.connection)
    for text in (*map(render, groups), *map(render_engines, comparisons)):
        click.echo(printable(text) + "\n")
    total = sum(counts.values())
    click.echo(f"{folder.name}: {total} cells: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    if set(counts) - {"ok"}:
        click.echo(f'  why: kvfrontier query {folder.name} "SELECT status, reason, count(*) FROM cells GROUP BY ALL"')


def render(group: Group) -> str:
    """Title, settings, table, guard rail and hints of one group; fits 120 columns where names are not long."""
    from kvfrontier.analysis.choice import hints
    from kvfrontier.analysis.table import BYTES_COUNTED, MARK, choice_table, remarks, settings, tiers_table, title
    from kvfrontier.cli._table import text_table

    lines = [title(group)]
    for purpose, text in settings(group):
        lines += wrap(f"{purpose}: {text}", COLUMNS, initial_indent="  ", subsequent_indent="    ")
    table = choice_table(group)
    lines += [f"  {line}" for line in text_table(table.header, table.rows, widest=STRATEGY_CHARS).splitlines()]
    if table.note:
        lines.append(f"  {table.note}")
    if any(cell.endswith(MARK) for row in table.rows for cell in row):
        lines.append(
            "  * on the frontier: no other line is as good both in it and in retention (else as full, else KL)"
        )
    if tiers := tiers_table(group):
        lines += ["  Where the bytes lie:"]
        lines += [f"  {line}" for line in text_table(tiers.header, tiers.rows, widest=STRATEGY_CHARS).splitlines()]
    for text in ([BYTES_COUNTED] if group.has_tiers else []) + remarks(group):
        lines += wrap(text, COLUMNS, initial_indent="  ", subsequent_indent="    ")
    if group.is_uninformative:
        lines.append(f"  ! retention is not informative here: {group.verdict['reason']}")
    found = hints(group)
    if found:
        lines.append("  Name the binding constraint first:")
    for hint in found:
        lines.append(f"    {hint.constraint}: {hint.choice}")
        lines += wrap(hint.because, COLUMNS, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def render_engines(comparison: SideBySide) -> str:
    """Configurations of several engines in one table; each quality with the engine that it was measured on."""
    from kvfrontier.analysis.table import MARK
    from kvfrontier.cli._table import text_table

    lines = [comparison.title, *(f"  {purpose}: {text}" for purpose, text in comparison.settings)]
    table = text_table(comparison.table.header, comparison.table.rows)
    lines += [f"  {line}" for line in table.splitlines()]
    if MARK in table:
        lines.append("  * on the frontier of all engines: no other line is as good both in quality and in this column")
    return "\n".join(lines)
