"""What a driver asks a new worker before it gives it a cell: where it is, and whether its rows would arrive."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

FILE_SYSTEM_PATIENCE_S = 5.0
"""A shared file system may show a new file that much later."""


class Meeting(NamedTuple):
    """What a worker says of itself. `lacks`: a file or folder of the driver's that it does not see, or empty."""

    pid: int
    host: str
    lacks: str = ""


def meet(worker: object, sign: Path | None, root: Path) -> Meeting:
    """Runs in the worker's process. `sign`: a file that the driver has just made in the campaign's folder, or None."""
    missing = "" if sign is None else _missing(sign) or _missing(root / "config")
    return Meeting(os.getpid(), socket.gethostname(), missing)


def _missing(path: Path) -> str:
    deadline_s = time.monotonic() + FILE_SYSTEM_PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            return str(path)
        time.sleep(0.2)
    return ""
