"""Strategies against one of them as rows of text that need no book on statistics, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Iterator

from kvfrontier.analysis.labels import shorter
from kvfrontier.analysis.paired import Line, Paired
from kvfrontier.analysis.table import MOST_ROWS, TextTable
from kvfrontier.metrics import METRICS

HOW_TO_READ = (
    "Both strategies answered the very same items (request, turn, place, seed), at the same budget where both have "
    "one.",
    "p: how often two strategies that are alike would differ at least so much by chance, if each conversation or "
    "document could as well have come out the other way round (McNemar's exact test where each has one question). "
    "Corrected: for all lines of the table (Holm); below 0.05 it is called better or worse.",
    "Not told apart does not mean equal: the interval, of that line alone, says what is still possible. Items of one "
    "conversation or document rise and fall together, so it is those that count as evidence: `15 of 5` are 15 items "
    "of 5 (a document of a task is one, however many seeds ask it). `+2 -1` under a place: gained and lost there.",
    "Equal by construction: the question is read without a decode step, and the strategy keeps every token for that.",
)


def heading(found: Paired) -> str:
    """`retention_correct against h2o`, and where; budgets are in the rows."""
    modelled = ["MODELLED, not measured"] if found.source == "model" else []
    place = " · ".join([found.model, found.engine_label, found.device, *modelled])
    return f"{found.metric} against {short_reference(found)} · {place}"


def table(found: Paired, lines: list[Line], by_phase: bool = False, most: int = MOST_ROWS) -> TextTable:
    """A row a line of `lines`; by_phase: what each phase alone gained and lost, in columns of
    their own, and fewer others.

    Of more than `most` lines those that say most are shown, those beyond chance first.
    """
    shown = lines
    if len(lines) > most:
        least = sorted(lines, key=lambda line: (line.corrected is None, line.corrected))[:most]
        shown = [line for line in lines if line in least]
    columns = dict(_columns(found, shown, by_phase))
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    more = f"{len(lines) - len(shown)} more lines: kvfrontier paired --format csv." if len(shown) < len(lines) else ""
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return TextTable(tuple(columns), rows, "Nothing can be paired.", more)


def _columns(found: Paired, lines: list[Line], by_phase: bool) -> Iterator[tuple[str, list[str]]]:
    short = short_names(found)
    yield "strategy", [short[line.series] for line in lines]
    yield "budget", [budget(line) for line in lines]
    if not by_phase:
        yield "phase", [line.phase or "" for line in lines]
    yield "items", [_items(line) for line in lines]
    yield "mean", [_mean(found, line.mean) for line in lines]
    if not by_phase:
        yield "reference", [_mean(found, line.reference_mean) for line in lines]
    yield f"difference ({_unit(found)})", [_size(found, line.difference) for line in lines]
    yield "95 % interval", [_interval(found, line) for line in lines]
    yield "lost", ["" if line.lost is None else str(line.lost) for line in lines]
    yield "gained", ["" if line.gained is None else str(line.gained) for line in lines]
    if not by_phase:
        yield "p", [_p(line.p) for line in lines]
    yield "p, corrected", [_p(line.corrected) for line in lines]
    yield "verdict", [verdict(found, line) for line in lines]
    if by_phase:
        yield from _phases(found, lines)


def short_names(found: Paired) -> dict[str, str]:
    """Labels without budgets -> no longer than tells them apart."""
    return shorter({found.reference, *(line.series for line in found.lines)})


def short_reference(found: Paired) -> str:
    """Its label beside the others' of the table."""
    return short_names(found)[found.reference]


def _phases(found: Paired, lines: list[Line]) -> Iterator[tuple[str, list[str]]]:
    """`+2 -1`: items of the phase gained and lost; the difference where items are not right or wrong."""
    apart = {(line.strategy_label, line.reference_label, line.phase): line for line in found.by_phase}
    for phase in dict.fromkeys(line.phase for line in found.by_phase):
        cells = []
        for line in lines:
            one = apart.get((line.strategy_label, line.reference_label, phase))
            if one is None:
                cells.append("")
            else:
                cells.append(f"+{one.gained} -{one.lost}" if found.is_share else _size(found, one.difference))
        yield phase, cells


def verdict(found: Paired, line: Line) -> str:
    """What can be said of a line, and where nothing can, why not."""
    if line.verdict == "same":
        return f"the same in all {line.n}"
    if line.verdict == "by construction":
        return "equal by construction"
    if line.verdict == "too few":
        least = found.needed if line.phase is None else found.needed_by_phase
        return f"too few ({line.independent} of {least})"
    if line.verdict == "not told apart" and line.visible is not None:
        return f"not told apart ({100 * line.visible:.0f} points or more could be)"
    return line.verdict


def meaning(found: Paired) -> str:
    """What one table compares, and what it could find at all."""
    metric, tested = METRICS[found.metric], sum(line.p is not None for line in found.lines)
    lost = (
        f" Lost, gained: items right with {short_reference(found)} alone, with the strategy alone."
        if found.is_share
        else ""
    )
    return (
        f"{metric.meaning} ({metric.better} is better); the difference is to {short_reference(found)}.{lost} "
        f"Corrected for {tested} lines: at least {found.needed} independent conversations or documents must change "
        "the same way before one of them can be told from chance, `too few` are fewer."
    )


def _items(line: Line) -> str:
    return f"{line.n:,}" if line.independent == line.n else f"{line.n:,} of {line.independent:,}"


def budget(line: Line) -> str:
    """Its own, else that of the reference."""
    if line.budget is not None:
        return f"{line.budget:g}"
    return "" if line.reference_budget is None else f"(to {line.reference_budget:g})"


def _unit(found: Paired) -> str:
    return "points" if found.is_share else METRICS[found.metric].unit


def _mean(found: Paired, value: float) -> str:
    return f"{value:.0%}" if found.is_share else f"{value:.3g}"


def _size(found: Paired, value: float) -> str:
    return f"{100 * value:+.0f}" if found.is_share else f"{value:+.3g}"


def _interval(found: Paired, line: Line) -> str:
    if line.low is None or line.verdict == "by construction":
        return ""
    return f"{_size(found, line.low)} to {_size(found, line.high)}"


def _p(value: float | None) -> str:
    return "" if value is None else "<0.0001" if value < 1e-4 else f"{value:.2g}"
