"""`kvfrontier compare A B`: what changed between two versions or campaigns, beyond noise."""

from __future__ import annotations

import click

from kvfrontier.errors import printable


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--campaign", help="Look for fingerprints and commits in the results of this campaign alone [all results]."
)
@click.option("--format", "kind", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="False alarms that are acceptable, after correction for many comparisons.",
)
@click.option("--cells", "most_cells", type=click.IntRange(min=0), default=20, show_default=True, help="Cells to list.")
@click.option("--fail-on", type=click.Choice(["worse"]), help="Exit with 1 where something became worse.")
def command(
    a: str, b: str, campaign: str | None, kind: str, alpha: float, most_cells: int, fail_on: str | None
) -> None:
    """Compare stored rows: B against A. Nothing is measured.

    A and B: the beginning of a fingerprint, a commit (its hash, or HEAD~1, a tag: anything git knows), a campaign with
    results (its current rows), or CAMPAIGN@COMMIT. Rows are paired by cell; two fingerprints are one pair, whatever
    their cells.

    \b
    kvfrontier compare default@HEAD~1 default
    kvfrontier compare 3f2a91c0 77be01d4
    """
    from kvfrontier.analysis.compare import compare
    from kvfrontier.cli._comparison import as_csv, as_json, as_text
    from kvfrontier.plan.project import Project
    from kvfrontier.store.selection import select

    project = Project.find()
    sides = select(project, a, campaign), select(project, b, campaign)
    is_one_pair = all(side.kind == "fingerprint" for side in sides)
    found = compare(sides[0].rows, sides[1].rows, alpha, by="" if is_one_pair else "cell_id")
    if kind == "table":
        click.echo(printable(as_text(*sides, found, most_cells)))
    else:
        click.echo(as_json(*sides, found) if kind == "json" else as_csv(found), nl=False)
    if fail_on and found.is_worse:
        raise SystemExit(1)
