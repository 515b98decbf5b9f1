"""`kvfrontier watch [CAMPAIGN]`: a campaign while it is measured."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvfrontier.run.monitor import Monitor

PLAIN_INTERVAL_S = 10.0
PLAIN_COLUMNS = 160
LEISURE = 10
"""A frame of a huge campaign is followed by so many times what it cost: login nodes are shared."""


@click.command("watch")
@click.argument("campaign", required=False)
@click.option("--once", is_flag=True, help="Print one frame and end; plain text where the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one frame as JSON and end.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between frames.",
)
def command(campaign: str | None, once: bool, as_json: bool, interval_s: float) -> None:
    """Show how far CAMPAIGN [the default one] is: done, in flight, left, time left, and what failed last.

    Ends when the campaign is finished, or on Ctrl-C, which does not touch the run. Works from any machine that sees
    the results folder, before, during and after a run.
    """
    from kvfrontier.cli._campaign import estimator, results_of
    from kvfrontier.run.monitor import Monitor, as_dict

    folder = results_of(campaign)
    monitor = Monitor(folder, estimator(folder))
    if as_json:
        click.echo(json.dumps(as_dict(monitor.frame()), indent=2))
        return
    try:
        _show(monitor, once, interval_s)
    except KeyboardInterrupt:
        click.echo("The run goes on; only the watching has ended.", err=True)
        raise SystemExit(130) from None


def _show(monitor: Monitor, once: bool, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from kvfrontier.cli._screen import picture

    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, force_terminal=is_terminal, width=None if is_terminal else PLAIN_COLUMNS)
    frame, took_s = monitor.frame(), 0.0
    if is_terminal and not once:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not frame.totals.is_finished:
                live.update(picture(frame, console.width, console.height), refresh=True)
                time.sleep(max(interval_s, LEISURE * took_s))
                start_s = time.process_time()
                frame = monitor.frame()
                took_s = time.process_time() - start_s
    elif not once:
        said = ""
        while not frame.totals.is_finished:
            words = f"{frame.campaign}: {frame.totals.words()}"
            if words != said:
                click.echo(words)
            said = words
            time.sleep(max(interval_s, PLAIN_INTERVAL_S))
            frame = monitor.frame()
    console.print(picture(frame, console.width))
