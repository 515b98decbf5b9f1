"""What an exception says about a cell: its status, where it happened, and the bytes that were not there."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from kvfrontier.errors import KVFrontierError, Unsupported, is_out_of_memory

PHASES = frozenset({"load", "prefill", "extend", "decode", "generate"})
_ASKED = re.compile(r"allocate (\d+(?:\.\d+)?) ?(bytes|[KMGT]i?B)\b", re.I)
_UNIT_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Overspent(Exception):
    """A strategy kept more than its budget allows."""


class ImpossibleValue(Exception):
    """A measured value that cannot be, such as a negative latency; or no value at all."""


@dataclass(frozen=True)
class Failure:
    """The part of a row that tells what went wrong."""

    status: str
    reason: str
    reason_class: str
    phase: str
    detail: str
    asked_bytes: int | None = None


def describe(error: Exception, phase: str) -> Failure:
    """Sort an exception raised in `phase` into `oom`, `unsupported` or `error`."""
    is_oom = is_out_of_memory(error)
    status = "oom" if is_oom else "unsupported" if isinstance(error, Unsupported) else "error"
    return Failure(
        status=status,
        reason=_in_words(error),
        reason_class=type(error).__name__,
        phase=_innermost_phase(error) or phase,
        detail="".join(traceback.format_exception(error)),
        asked_bytes=_asked_bytes(str(error)) if is_oom else None,
    )


def _in_words(error: Exception) -> str:
    """The message; of errors that are not ours with their class, as `'added_tokens'` alone says nothing."""
    if isinstance(error, KVFrontierError | Overspent | ImpossibleValue):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _asked_bytes(message: str) -> int | None:
    """`tried to allocate 2.50 GiB`, `you tried to allocate 4096 bytes` -> bytes."""
    found = _ASKED.search(message)
    return int(float(found[1]) * _UNIT_BYTES[found[2][0].lower()]) if found else None


def _innermost_phase(error: Exception) -> str:
    ours = (frame for frame in reversed(traceback.extract_tb(error.__traceback__)) if "kvfrontier" in frame.filename)
    return next((frame.name for frame in ours if frame.name in PHASES), "")
