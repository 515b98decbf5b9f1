"""A frame of a campaign as rich draws it: the same on a terminal, in a pipe, and in a narrow window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvfrontier.cli._table import one_line
from kvfrontier.run.cell_log import FAILED
from kvfrontier.run.verdict import log_command
from kvfrontier.units import format_seconds

if TYPE_CHECKING:
    from kvfrontier.run.monitor import Frame
    from kvfrontier.store.progress import ShardProgress, Totals

SHARDS, FLIGHTS, MOST = 4, 4, 30
WIDE = 110
"""From so many columns on, a shard's model, engine and device have their own; else they stand in its name."""
TALL = 30
"""From so many lines on, three failures are shown, else one."""
OTHER_LINES = 20
"""Lines of a frame that are neither shards nor cells in flight."""
COLOURS = {"ok": "green", "error": "bold red", "timeout": "bold red", "oom": "red"}


def picture(frame: Frame, columns: int, lines: int | None = None) -> RenderableType:
    """The frame; with `lines`, so that it fits a screen of so many (what is too wide is cut off, and not wrapped)."""
    room = MOST if lines is None else max(SHARDS + FLIGHTS, lines - OTHER_LINES - 1)
    flights = frame.flights[: min(max(FLIGHTS, room // 3), room - SHARDS)]
    is_cut = lines is not None
    parts: list[RenderableType] = [_head(frame), _bar(frame.totals), _statuses(frame.totals)]
    parts += ["", _shards(frame.shards, room - len(flights), columns >= WIDE)]
    if frame.flights:
        parts += ["", _flights(frame, len(flights), is_cut)]
    if frame.failures:
        parts += ["", *_failures(frame, is_cut, 3 if lines is None or lines >= TALL else 1)]
    return Group(*parts)


def _head(frame: Frame) -> Text:
    head = Text.assemble((frame.campaign, "bold"), f"  {frame.totals.words()}", no_wrap=True, overflow="ellipsis")
    head.append(f"  ({frame.at:%H:%M:%S} UTC)", "dim")
    return head


def _bar(total: Totals) -> RenderableType:
    return ProgressBar(total=max(1, total.cells), completed=total.done, width=60)


def _statuses(total: Totals) -> Text:
    if not total.counts:
        return Text("nothing is stored yet", "dim")
    pieces = [Text(f"{count:,} {status}", COLOURS.get(status, "")) for status, count in sorted(total.counts.items())]
    return Text("  ").join(pieces)


def _shards(shards: Sequence[ShardProgress], most: int, is_wide: bool) -> Table:
    """Those being measured first, then those with something left, then the rest."""
    names = ("model", "engine", "device") if is_wide else ()
    table = _table("shard", *names, "done", "failed", "rate", "left", "where")
    ordered = sorted(shards, key=lambda shard: (shard.beat is None, not (shard.remaining or shard.in_flight)))
    for shard in ordered[:most]:
        name = shard.shard.rpartition(".")[2] if is_wide else shard.shard.rpartition("-")[0] or shard.shard
        cells = [_cut(text) for text in (name, *(getattr(shard, name) for name in names))]
        table.add_row(*cells, *_numbers(shard), style="" if shard.beat else "dim")
    if len(ordered) > most:
        rest = ordered[most:]
        waiting = sum(bool(shard.remaining or shard.in_flight) for shard in rest)
        table.add_row(_cut(f"and {len(rest):,} more: {waiting:,} wait, {len(rest) - waiting:,} done", "dim"))
    return table


def _numbers(shard: ShardProgress) -> Iterator[Text]:
    beat = shard.beat
    yield Text(f"{shard.done:,} of {shard.cells:,}")
    failed = sum(shard.counts[status] for status in FAILED)
    yield Text(f"{failed:,}" if failed else "", "red")
    yield Text(_rate(beat.cells_per_s) if beat else "")
    if not (shard.remaining or shard.in_flight):
        yield Text("done")
    else:
        yield Text("?" if shard.seconds_left is None else _about(shard.seconds_left))
    job = f"{beat.host} job {beat.slurm_job_id}" if beat and beat.slurm_job_id else beat.host if beat else ""
    yield _cut(job or ("waits" if shard.remaining else ""))


def _rate(cells_per_s: float | None) -> str:
    if cells_per_s is None:
        return "starting"
    return f"{cells_per_s:.3g}/s" if cells_per_s >= 1 else f"{60 * cells_per_s:.3g}/min"


def _about(seconds: float) -> str:
    return format_seconds(max(1, round(seconds)))


def _flights(frame: Frame, most: int, is_cut: bool) -> Table:
    table = _table("in flight", "for", "cell")
    for flight in frame.flights[:most]:
        seconds = format_seconds(round(flight.seconds(frame.at), 1))
        cell = _cut(flight.label) if is_cut else Text(one_line(flight.label))
        table.add_row(flight.cell_id[:12], Text(seconds), cell)
    if len(frame.flights) > most:
        table.add_row(Text(f"and {len(frame.flights) - most} more", "dim"))
    return table


def _failures(frame: Frame, is_cut: bool, most: int) -> Iterator[Text]:
    yield Text("Latest failures", "bold")
    for failure in frame.failures[:most]:
        reason = one_line(failure.reason) or "no reason was given"
        what = Text.assemble((failure.status, COLOURS[failure.status]), f"  {reason}")
        for text in (what, Text(f"  {one_line(failure.label)}", "dim")):
            text.no_wrap, text.overflow = is_cut, "ellipsis" if is_cut else "fold"
            yield text
        yield Text(f"  {log_command(frame.campaign, failure.cell_id)}", "cyan")


def _cut(text: str, style: str = "") -> Text:
    """One line, with an ellipsis where the screen ends."""
    return Text(one_line(text), style, no_wrap=True, overflow="ellipsis")


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        is_number = name in ("done", "failed", "rate", "left", "for")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    return table
