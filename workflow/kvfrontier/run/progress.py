"""One line that says how far a shard is: rewritten in place on a terminal, now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TextIO

from kvfrontier.units import format_seconds

TERMINAL_INTERVAL_S = 0.2
FILE_INTERVAL_S = 10.0
FILE_SILENCE_S = 60.0  # a log hears at least so often that long cells are still running
_CLEAR = "\r\x1b[2K"
FAILED = ("error", "timeout", "oom")


class Progress:
    """Counts cells as they finish. `total` includes what is settled already."""

    def __init__(self, name: str, total: int, settled: Counter[str], stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._name, self._total = name, total
        self._counts = Counter(settled)
        self._settled = settled.total()
        self._start_s = self._shown_s = time.monotonic()
        self._first_s: float | None = None  # the first cell ends: until then models are loaded, which does not repeat

    @property
    def counts(self) -> Counter[str]:
        """Cells by status so far."""
        return Counter(self._counts)

    @property
    def total(self) -> int:
        """Cells of the shard."""
        return self._total

    @property
    def settled(self) -> int:
        """Cells that needed no run."""
        return self._settled

    @property
    def measuring_s(self) -> float | None:
        """Seconds since the first cell ended; None until then."""
        return None if self._first_s is None else time.monotonic() - self._first_s

    @property
    def seconds_left(self) -> float | None:
        """At the pace since the first cell ended; None until a second one has."""
        done = self._counts.total()
        since_first = done - self._settled - 1
        if since_first < 1:
            return None
        return (time.monotonic() - self._first_s) / since_first * (self._total - done)

    def add(self, status: str) -> None:
        """One more cell has ended."""
        self._counts[status] += 1
        self._first_s = self._first_s or time.monotonic()
        interval_s = TERMINAL_INTERVAL_S if self._is_terminal else FILE_INTERVAL_S
        if time.monotonic() - self._shown_s >= interval_s:
            self.show()

    def tick(self) -> None:
        """Nothing has ended, time has passed: say that it still runs."""
        interval_s = 1.0 if self._is_terminal else FILE_SILENCE_S
        if time.monotonic() - self._shown_s >= interval_s:
            self.show()

    def show(self) -> None:
        """Write the line now."""
        self._shown_s = time.monotonic()
        start, end = (_CLEAR, "") if self._is_terminal else ("", "\n")
        self._stream.write(f"{start}{self.line()}{end}")
        self._stream.flush()

    def line(self) -> str:
        """`model.torch.cpu: 12 of 40 cells, 1 error, 3 min 20 s left`."""
        done = self._counts.total()
        parts = [f"{self._name}: {done} of {self._total} cells", *_failures(self._counts)]
        since_first = done - self._settled - 1
        if since_first < 0:
            running_s = round(time.monotonic() - self._start_s)
            parts.append(f"the first ones since {format_seconds(running_s)}" if running_s else "starting")
        elif since_first > 0 and done < self._total:
            parts.append(f"about {format_seconds(max(1, round(self.seconds_left)))} left")
        return ", ".join(parts)

    def close(self, advice: str = "") -> None:
        """Write the summary; where cells failed, with what shows why."""
        took = format_seconds(time.monotonic() - self._start_s)
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(self._counts.items())) or "no cells"
        self._stream.write(f"{_CLEAR if self._is_terminal else ''}{self._name}: {statuses}; took {took}\n")
        if advice and any(self._counts[status] for status in FAILED):
            self._stream.write(f"  why: {advice}\n")
        self._stream.flush()


def _failures(counts: Counter[str]) -> list[str]:
    return [f"{counts[status]} {status}" for status in FAILED if counts[status]]
