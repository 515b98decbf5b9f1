"""Know when to stop: a signal, or the Snakemake that started this process has died."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from kvfrontier.errors import KVFrontierError

POLL_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KVFrontierError):
    """Someone asked for the end; finished rows stay."""


class _Process(NamedTuple):
    pid: int
    started: str  # a pid alone may be given to another process

    @property
    def is_alive(self) -> bool:
        status = _status(self.pid)
        return bool(status) and status[19] == self.started and status[0] != "Z"


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise Stopped in the block (once) on SIGINT, SIGTERM or SIGHUP, and when Snakemake is gone.

    Snakemake starts us through a shell, so its death, by `kill -9` say, sends us nothing: watch it. A signal that was
    ignored when we started (`nohup`, a script's background job) stays so.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for name in SIGNALS:
            signal.signal(name, signal.SIG_IGN)  # a second one must not break the cleaning up
        raise Stopped(f"stopped by {signal.Signals(number).name}. What was measured is kept; run again to go on.")

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heeded}
    snakemake = _snakemake_above()
    if snakemake is not None:
        threading.Thread(target=_watch, args=(snakemake,), daemon=True).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(process: _Process) -> None:
    while process.is_alive:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _snakemake_above() -> _Process | None:
    """The nearest ancestor that is a Snakemake, or None when a person started us."""
    pid = os.getppid()
    while pid > 1:
        status = _status(pid)
        if not status:
            return None
        if _is_snakemake(pid):
            return _Process(pid, status[19])
        pid = int(status[1])
    return None


def _is_snakemake(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:4]
    except OSError:
        return False
    return any(os.path.basename(word) == b"snakemake" for word in words)


def _status(pid: int) -> list[str]:
    """Fields of `/proc/<pid>/stat` after the command name: state, parent, ...; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
