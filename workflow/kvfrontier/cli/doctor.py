"""`kvfrontier doctor`: what this machine can run, and what is registered."""

from __future__ import annotations

import json

import click

MARKS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the names of all plugins and metrics.")
def command(as_json: bool) -> None:
    """Say what this machine can run and what is missing. Exits with 1 when something is."""
    from kvfrontier.metrics import METRICS
    from kvfrontier.plan.project import Project
    from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS
    from kvfrontier.run.doctor import examine

    findings = list(examine(Project.find()))
    if as_json:
        names = {
            "strategies": STRATEGIES.names(),
            "engines": ENGINES.names(),
            "workloads": WORKLOADS.names(),
            "metrics": sorted(METRICS),
        }
        click.echo(json.dumps({"findings": [finding._asdict() for finding in findings], **names}, indent=2))
    else:
        for finding in findings:
            click.echo(f"{MARKS[finding.state]} {finding.topic}: {finding.text}")
    if any(finding.state == "problem" for finding in findings):
        raise SystemExit(1)
