"""Make one signal to Snakemake enough, whichever it is and whoever else gets it.

Left to itself, Snakemake lets its local jobs run to their ends after a signal that reached it alone. The Snakefile
calls `stop_jobs_on_signal` when the jobs start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROGRAM = "kvfrontier"
POLL_S = 0.2
PATIENCE_S = 12.0
"""Longer than a job takes to end itself. One that was killed leaves nothing either: see `guard`."""


def stop_jobs_on_signal() -> None:
    """From now on a signal ends this Snakemake as Ctrl-C does (what it has submitted is cancelled), its jobs first."""
    is_first = True

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            threading.Thread(target=_end_jobs, daemon=True).start()
            raise KeyboardInterrupt

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def _end_jobs() -> None:
    """Tell each of our commands below us, also those that are only now being started, and in the end insist."""
    told: set[psutil.Process] = set()
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        is_late = time.monotonic() > deadline_s
        for process in _commands():
            if is_late or process not in told:
                told.add(process)
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(POLL_S)


def _commands() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if _is_ours(process)]


def _is_ours(process: psutil.Process) -> bool:
    """Not the shell around it: without it Snakemake would go on while our command is still cleaning up."""
    try:
        return any(os.path.basename(word) == PROGRAM for word in process.cmdline()[:2])
    except psutil.Error:
        return False
