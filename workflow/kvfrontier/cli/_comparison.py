"""A comparison as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from kvfrontier.analysis.compare import Change, Comparison
from kvfrontier.cli._table import text_table
from kvfrontier.plan.cell import Cell
from kvfrontier.store.selection import Selection

CHANGED = ("worse", "better", "changed")
DIFFERENCES_SHOWN = 30


def as_text(a: Selection, b: Selection, found: Comparison, most_cells: int) -> str:
    """What was compared, what differs around it, metrics, cells, and what could not be compared."""
    pairs = len(found.cells)
    blocks = [
        f"A  {a.meaning}: {_count(len(a.rows), 'row')}\nB  {b.meaning}: {_count(len(b.rows), 'row')}",
        "\n".join(f"Note: {note}" for note in dict.fromkeys((*a.notes, *b.notes))),
    ]
    if pairs == found.same_rows:
        return "\n\n".join(block for block in (*blocks, _nothing(found)) if block)
    blocks += [_differences(found), _metrics(found), _cells(found, most_cells), _left_out(found), _verdict(found)]
    return "\n\n".join(block for block in blocks if block)


def as_json(a: Selection, b: Selection, found: Comparison) -> str:
    """One object; `metrics` and `cells` hold a list of changes."""
    content = {
        "a": {"said": a.said, "meaning": a.meaning, "rows": len(a.rows), "notes": a.notes},
        "b": {"said": b.said, "meaning": b.meaning, "rows": len(b.rows), "notes": b.notes},
        "pairs": len(found.cells),
        "same_rows": found.same_rows,
        "only_in_a": found.only_in_a,
        "only_in_b": found.only_in_b,
        "is_worse": found.is_worse,
        "differences": found.differences,
        "statuses": [{"a": a, "b": b, "cells": count} for (a, b), count in found.statuses.items()],
        "one_sided": [{"metric": m, "side": s, "cells": n} for (m, s), n in found.one_sided.items()],
        "metrics": [change._asdict() for change in found.metrics],
        "cells": [change._asdict() for change in found.by_cell],
    }
    return json.dumps(content, indent=1) + "\n"


def as_csv(found: Comparison) -> str:
    """One line a metric (level `metric`), then one a metric of a cell (level `cell`)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["level", *Change._fields])
    for level, changes in (("metric", found.metrics), ("cell", found.by_cell)):
        writer.writerows([level, *change] for change in changes)
    return text.getvalue()


def _nothing(found: Comparison) -> str:
    if found.same_rows:
        return f"A and B are the same {_count(found.same_rows, 'row')}: nothing was measured twice.{_others(found)}"
    return (
        f"Nothing to compare: no cell is in both.{_others(found)}\nTwo fingerprints are compared whatever their cells."
    )


def _others(found: Comparison) -> str:
    sides = ((found.only_in_a, "A"), (found.only_in_b, "B"))
    counts = [f"{_count(number, 'cell')} only in {side}" for number, side in sides if number]
    return f" {', '.join(counts)}." if counts else ""


def _differences(found: Comparison) -> str:
    """Parts of the fingerprint, then what was around: a table of before and after."""
    lines = []
    for pair, cell in found.other_cells.items():
        before, after = (_flat(_parsed(text)) for text in (found.cells[pair], cell))
        names = dict.fromkeys([*before, *after])
        lines += [
            ("cell", name, before.get(name), after.get(name), 1)
            for name in names
            if before.get(name) != after.get(name)
        ]
    kinds = {"part": "fingerprint", "around": "provenance"}
    lines += [(kinds[row["kind"]], row["name"], row["a"], row["b"], row["pairs"]) for row in found.differences]
    if not lines:
        return "The same code, model, packages, device and machine on both sides."
    more = f"\n... and {len(lines) - DIFFERENCES_SHOWN} more" if len(lines) > DIFFERENCES_SHOWN else ""
    header = ("differs", "what", "A", "B", "cells")
    shown = [(*line[:2], *("(none)" if value is None else value for value in line[2:4]), line[4]) for line in lines]
    return text_table(header, shown[:DIFFERENCES_SHOWN], widest=44) + more


def _metrics(found: Comparison) -> str:
    shown = [change for change in found.metrics if change.verdict != "same"]
    moved = {change.metric for change in shown}
    same = dict.fromkeys(
        name(item) if item.metric in moved else item.metric for item in found.metrics if item not in shown
    )
    equal = f"The same in every cell: {', '.join(same)}." if same else ""
    if not shown:
        return equal
    header = ("metric", "cells", "A", "B", "change", "95 % interval", "p", "test", "verdict", "cells by themselves")
    table = text_table(header, [(name(change), *columns(change), _alone(change, found)) for change in shown])
    note = "A, B: medians over the cells. p: Holm-corrected over the metrics. `exact`: must not differ at all."
    return "\n".join(line for line in (table, note, equal) if line)


def _alone(change: Change, found: Comparison) -> str:
    """`2 worse, 1 better`: the metric's cells that changed by themselves."""
    key = (change.metric, change.place, change.source)
    verdicts = [item.verdict for item in found.by_cell if (item.metric, item.place, item.source) == key]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in CHANGED if word in verdicts)


def _cells(found: Comparison, most: int) -> str:
    changed = [change for change in found.by_cell if change.verdict in CHANGED]
    if not changed or not most:
        return ""
    header = ("cell", "metric", "n", "A", "B", "change", "95 % interval", "p", "test", "verdict", "which")
    rows = [
        (change.pair[:8], name(change), *columns(change), _label(found.cells[change.pair])) for change in changed[:most]
    ]
    more = f"\n... and {len(changed) - most} more: --cells N, --format csv" if len(changed) > most else ""
    cells = len({change.pair for change in changed})
    title = f"{_count(cells, 'cell')} changed by themselves (p: Benjamini-Hochberg over all cells and metrics):"
    return f"{title}\n{text_table(header, rows, widest=80)}{more}"


def columns(change: Change) -> tuple[Any, ...]:
    is_ratio = change.scale == "ratio"
    interval = None
    if change.low is not None and change.high is not None and change.test != "same":
        interval = f"{_size(change.low, is_ratio)} to {_size(change.high, is_ratio)}"
    count = f"{change.differing} of {change.n}" if change.test == "exact" else change.n
    p = None if change.p is None else f"{change.p:.2g}"
    return count, change.a, change.b, _size(change.effect, is_ratio), interval, p, change.test, change.verdict


def _size(effect: float | None, is_ratio: bool) -> str | None:
    if effect is None:
        return None
    return f"{100 * (effect - 1):+.2f} %" if is_ratio else f"{effect:+.3g}"


def _left_out(found: Comparison) -> str:
    lines = [
        f"{found.only_in_a:8,}  cells only in A" if found.only_in_a else "",
        f"{found.only_in_b:8,}  cells only in B" if found.only_in_b else "",
        f"{found.same_rows:8,}  cells whose row is the same one in A and B" if found.same_rows else "",
    ]
    for (a, b), count in sorted(found.statuses.items()):
        if a != b:
            lines.append(f"{count:8,}  cells {a} in A, {b} in B")
        elif a != "ok":
            lines.append(f"{count:8,}  cells {a} in both")
    few = len({change.pair for change in found.by_cell if change.verdict == "too few"})
    lines.append(f"{few:8,}  cells have metrics with too few values for a test of their own" if few else "")
    lines += [
        f"{count:8,}  cells have {metric} only in {side.upper()}" for (metric, side), count in found.one_sided.items()
    ]
    kept = [line for line in lines if line]
    return "\n".join(["Not compared:", *kept]) if kept else ""


def _verdict(found: Comparison) -> str:
    counts = {word: sum(change.verdict == word for change in found.metrics) for word in CHANGED}
    said = ", ".join(f"{_count(count, 'metric')} {word}" for word, count in counts.items() if count)
    lost = sum(count for (a, b), count in found.statuses.items() if a == "ok" != b)
    alone = len({change.pair for change in found.by_cell if change.verdict in CHANGED})
    cells = f"; {_count(alone, 'cell')} changed by themselves" if alone else ""
    worse = f"; {_count(lost, 'cell')} no longer ok" if lost else ""
    said = said or f"no metric changed beyond noise{' over all its cells' if alone else ''}"
    return f"Of {_count(len(found.cells), 'pair')}: {said}{cells}{worse}."


def name(change: Change) -> str:
    place = f" ({change.place})" if change.place else ""
    return f"{change.metric}{place}{' [model]' if change.source == 'model' else ''}"


def _label(text: str) -> str:
    """A cell in words; as it stands where it is none (rows may come from anywhere)."""
    try:
        cell = Cell.from_dict(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError):
        return text
    return f"{cell.model}, {cell.strategy.label}, {cell.workload.label}, seed {cell.seed}"


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"cell": found}


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`"""
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": str(item)}
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
