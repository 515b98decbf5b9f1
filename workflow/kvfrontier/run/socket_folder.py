"""A folder for Ray's sockets: short, on this machine's own disk, and nobody else's."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from kvfrontier.errors import Unavailable
from kvfrontier.store.lock import Busy, acquire

VARIABLE = "KVFRONTIER_TMP"
LOCK = "driver.lock"
LONGEST_BASE = 15
"""Bytes. A socket's whole path may have 107, of which Ray and our own folder take the rest. TMPDIR is often longer."""


def socket_folder() -> tuple[Path, int]:
    """The folder, and the descriptor of the lock that holds it; remove it, then close that.

    Folders whose process was killed are removed on the way. Not known by process ids: containers may share the folder.
    """
    base = Path(os.environ.get(VARIABLE) or "/tmp")
    if len(os.fsencode(base)) > LONGEST_BASE or not base.is_absolute():
        expected = f"an absolute path of at most {LONGEST_BASE} bytes, as Ray's sockets lie in it (/tmp, /dev/shm)"
        raise Unavailable(f"{VARIABLE} is {base}; expected {expected}")
    try:
        for old in base.glob(f"kvf-{os.getuid()}-*"):
            with contextlib.suppress(Busy):
                os.close(acquire(old / LOCK, "using this folder"))
                shutil.rmtree(old, ignore_errors=True)
        unnamed = Path(tempfile.mkdtemp(prefix=f".kvf-{os.getuid()}-", dir=base))
        lock = acquire(unnamed / LOCK, "using this folder")
        # Renamed once it is locked, so that no other process can take it for a leftover in between.
        return unnamed.rename(base / unnamed.name.lstrip(".")), lock
    except OSError as error:
        advice = f"set {VARIABLE} to a short path that can be written on every node, such as /dev/shm"
        raise Unavailable(f"Ray needs a folder for its sockets under {base}: {error.strerror}; {advice}") from error
