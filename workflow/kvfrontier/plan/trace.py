"""A trace of requests in a CSV file: when each came, how long it was, and how long its answer.

Columns `arrival_s`, `context_tokens`, `output_tokens`, or those of the public Azure LLM inference traces (`TIMESTAMP`,
`ContextTokens`, `GeneratedTokens`); others are not read. A time is a number of seconds, or a date and time.
"""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from kvfrontier.errors import did_you_mean
from kvfrontier.plan.document import show

COLUMNS = (("arrival_s", "context_tokens", "output_tokens"), ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
EXPECTED = f"a CSV file with a header and the columns {' or '.join(', '.join(names) for names in COLUMNS)}"
LONGEST = 10**9
"""Tokens of one request: above, the number is a slip."""


class TracedRequest(NamedTuple):
    """arrival_s: seconds since the first one."""

    arrival_s: float
    context_tokens: int
    output_tokens: int


def read_trace(path: Path) -> tuple[TracedRequest, ...]:
    """All requests of the file, earliest first. Raises ValueError(expected, hint) for a file that is no trace."""
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_ctime_ns)
    except OSError as error:
        raise ValueError("a file that can be read", f"{path}: {error.strerror or error}.") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(EXPECTED, f"{path.name} is none: {error}.") from None


@lru_cache(maxsize=8)
def _read(path: Path, mtime_ns: int, ctime_ns: int) -> tuple[TracedRequest, ...]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file, strict=True)
        names = _columns(path, rows.fieldnames or [])
        found = sorted(_request(path, rows.line_num, [row[name] for name in names]) for row in rows)
    if not found:
        raise ValueError("at least one request", f"{path.name} has a header alone.")
    first = found[0].arrival_s
    return tuple(request._replace(arrival_s=request.arrival_s - first) for request in found)


def _columns(path: Path, header: list[str]) -> tuple[str, ...]:
    """Names of the three columns, as the file has them."""
    spelled = {name.strip(): name for name in header}
    for names in COLUMNS:
        if spelled.keys() >= set(names):
            return tuple(spelled[name] for name in names)
    meant = max(COLUMNS, key=lambda names: len(spelled.keys() & set(names)))
    missing = next(name for name in meant if name not in spelled)
    nearest = did_you_mean(missing, [name for name in spelled if name not in meant])
    said = f"{path.name} has the columns {', '.join(map(show, spelled)) or '(none)'}; {missing} is missing."
    raise ValueError(EXPECTED, f"{said} {nearest.replace('Did you mean', 'Is it')}".rstrip())


def _request(path: Path, line: int, cells: list[str | None]) -> TracedRequest:
    time, context, output = cells
    return TracedRequest(_seconds(path, line, time), _tokens(path, line, context), _tokens(path, line, output))


def _seconds(path: Path, line: int, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = _timestamp(text)
    if math.isfinite(value):
        return value
    raise ValueError("times in seconds, or dates with times", f"{path.name}, line {line}: got {show(text or '')}.")


def _timestamp(text: str | None) -> float:
    """Seconds since 1970; a time without a zone is taken for UTC, a text that is none for no number."""
    try:
        moment = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _tokens(path: Path, line: int, text: str | None) -> int:
    value = (text or "").strip()
    if value.isdecimal() and len(value) < 20 and 1 <= int(value) <= LONGEST:
        return int(value)
    expected = f"whole numbers of tokens, from 1 to {LONGEST:,}"
    raise ValueError(expected, f"{path.name}, line {line}: got {show(text or '')}.")
