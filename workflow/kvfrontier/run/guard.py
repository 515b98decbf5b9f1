"""Outlives a driver just long enough to end what it leaves behind, also after `kill -9`: Ray's processes and files.

Run as `python -m kvfrontier.run.guard FOLDER` with the driver's Ray token in the environment; all that Ray starts
inherits that, which is how it is known. Standard input ends when the driver does, whatever ends it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

TOKEN = "RAY_AUTH_TOKEN"
ROUNDS = 50
PAUSE_S = 0.1


def end_marked(token: str) -> bool:
    """Kill every other process that has the token in its environment; False where there is none."""
    mark, found = f"{TOKEN}={token}".encode(), False
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                found = True
    return found


def main() -> None:
    """Wait for the driver's end, then sweep until nothing is left (a dying process may just have started another)."""
    sys.stdin.buffer.read()
    for _ in range(ROUNDS):
        if not end_marked(os.environ[TOKEN]):
            break
        time.sleep(PAUSE_S)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
