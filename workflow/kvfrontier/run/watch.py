"""Know when to stop: a signal, or the Snakemake that started this process has died."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from kvfrontier.errors import KVFrontierError

POLL_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_CODE = 130
PATIENCE_S = 3.0
"""From a signal to the last resort: a main thread that is stuck in native code (Ray's start, say) sees no signal."""


class Stopped(KVFrontierError):
    """Someone asked for the end; finished rows stay."""


@dataclass
class _Stop:
    """The one stop that a process can be asked for."""

    reason: str = ""
    is_deferred: bool = False
    is_raised: bool = False
    handlers: dict[int, Callable[[int, FrameType | None], None]] = field(default_factory=dict)
    last_resorts: list[Callable[[], None]] = field(default_factory=list)

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self.reason = self.reason or _reason(number)
        if not self.is_deferred:
            self.raise_once()

    def raise_once(self) -> None:
        """A second signal must not break the cleaning up after the first."""
        if self.reason and not self.is_raised:
            self.is_raised = True
            raise Stopped(self.reason)


_stop = _Stop()


def _reason(number: int) -> str:
    return f"stopped by {signal.Signals(number).name}. What was measured is kept; run again to go on."


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise Stopped in the block (once) on SIGINT, SIGTERM or SIGHUP, and when Snakemake is gone.

    Snakemake starts us through a shell, so its death, by `kill -9` say, sends us nothing: watch it. A signal that was
    ignored when we started (`nohup`, a script's background job) stays so. When the block does not end within
    `PATIENCE_S` of the signal, the process does.
    """
    global _stop
    _stop = stop = _Stop()
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop.note) for number in heeded}
    stop.handlers = dict.fromkeys(heeded, stop.note)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    ended = threading.Event()
    threading.Thread(target=_insist, args=(stop, reading, ended), daemon=True).start()
    snakemake = _snakemake_above()
    if snakemake is not None:
        threading.Thread(target=_watch, args=(snakemake,), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(wakeup_before)
        os.close(writing)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """In the block signals are only noted; what it yields raises Stopped when there was one. Call it often.

    An exception that a handler raises inside a native library comes out of it as another one, or is swallowed.
    """
    stop = _stop
    stop.is_deferred = True
    try:
        yield stop.raise_once
    except SystemExit:  # a handler of the library's own
        stop.reason = stop.reason or _reason(signal.SIGTERM)
    finally:
        stop.is_deferred = False
    stop.raise_once()


def insist_on_handlers() -> None:
    """Put our signal handlers back in place after a library has set its own."""
    for number, handler in _stop.handlers.items():
        signal.signal(number, handler)


def leave_now() -> NoReturn:
    """End the process without what libraries do at its end: Ray, say, would wait for processes that are dead."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(EXIT_CODE)


@contextmanager
def last_resort(act: Callable[[], None]) -> Iterator[None]:
    """What to do before the process ends because the block did not stop when it was asked to."""
    stop = _stop
    stop.last_resorts.append(act)
    try:
        yield
    finally:
        stop.last_resorts.remove(act)


def _insist(stop: _Stop, pipe: int, ended: threading.Event) -> None:
    """Python hands each signal's number to the pipe at once, whatever the main thread is doing."""
    with os.fdopen(pipe, "rb", buffering=0) as numbers:
        while byte := numbers.read(1):
            if byte[0] in stop.handlers and not ended.wait(PATIENCE_S):
                for act in reversed(stop.last_resorts):
                    with suppress(OSError):
                        act()
                os.write(2, f"{_reason(byte[0])}\n".encode())
                os._exit(EXIT_CODE)


class _Process(NamedTuple):
    pid: int
    started: str  # a pid alone may be given to another process

    @property
    def is_alive(self) -> bool:
        status = _status(self.pid)
        return bool(status) and status[19] == self.started and status[0] != "Z"


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
