"""Outlives a driver just long enough to end what it leaves behind, also after `kill -9`: Ray's processes and files.

Run as `python -m kvfrontier.run.guard FOLDER` with a mark in the environment, which all inherit that Ray starts and by
which they are known. (Some of them set their titles, and a title overwrites the environment that others see, unless
SPT_NOENV is set: once such leftovers outlived one killed driver in ten.) Standard input ends when the driver does,
whatever ends it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "KVFRONTIER_GUARDED"
PATIENCE_S = 30.0
PAUSE_S = 0.1
QUIET_ROUNDS = 3
"""So many looks in a row without finding any: a process that is just being started shows no environment yet."""


def end_marked(mark: str) -> bool:
    """Kill every other process that has the mark in its environment; False where there is none."""
    entry, found = f"{MARK}={mark}".encode(), False
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and entry in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                found = True
    return found


def main() -> None:
    """Wait for the driver's end, then sweep until nothing is left (a dying process may just have started another)."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever ends the driver by its processes means the driver
    sys.stdin.buffer.read()
    deadline_s, quiet = time.monotonic() + PATIENCE_S, 0
    while quiet < QUIET_ROUNDS and time.monotonic() < deadline_s:
        quiet = 0 if end_marked(os.environ[MARK]) else quiet + 1
        time.sleep(PAUSE_S)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
