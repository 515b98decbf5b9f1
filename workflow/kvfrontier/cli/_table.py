"""Rows as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

WIDEST = 60


def text_table(header: Sequence[str], rows: Iterable[Sequence[Any]], widest: int = WIDEST) -> str:
    """Columns two spaces apart, numbers to the right, longer texts than `widest` cut with an ellipsis."""
    rows = [list(row) for row in rows]
    numeric = [
        all(isinstance(row[index], int | float | None) for row in rows) and any(row[index] is not None for row in rows)
        for index in range(len(header))
    ]
    cells = [[_text(name, widest) for name in header]] + [[_text(value, widest) for value in row] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(header))]
    cells.insert(1, ["─" * width for width in widths])
    lines = (
        "  ".join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )
    return "\n".join(lines)


def _text(value: Any, widest: int) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else one_line(value)
    return text if len(text) <= widest else text[: widest - 1] + "…"


def one_line(value: Any) -> str:
    """As one line that cannot move the cursor or colour the screen."""
    return printable(" ".join(str(value).split()))


def printable(value: Any) -> str:
    """Reasons and logs come from anywhere: control characters, the terminal's escape among them, become `?`."""
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in str(value))
