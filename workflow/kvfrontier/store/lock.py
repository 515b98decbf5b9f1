"""Locks that die with their holder: flock on a file, so that `kill -9` leaves nothing to unlock."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvfrontier.errors import KVFrontierError
from kvfrontier.store.files import explained

POLL_S = 0.5


class Busy(KVFrontierError):
    """Another process holds the lock; the message names it."""


def acquire(path: Path, purpose: str) -> int:
    """Take the lock now or raise Busy. Returns the descriptor; closing it, or the end of the process, releases."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 4096).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise Busy(f"{purpose} is already being done by {holder}.") from None
    note = f"process {os.getpid()} on {socket.gethostname()} (since {time.strftime('%Y-%m-%d %H:%M:%S')})"
    with explained(path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)
    return descriptor


@contextmanager
def held(path: Path, purpose: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock during the block, waiting for it as long as it takes; `on_wait` is told once whom we wait for."""
    descriptor = None
    while descriptor is None:
        try:
            descriptor = acquire(path, purpose)
        except Busy as busy:
            if on_wait:
                on_wait(f"{busy} Waiting for it.")
                on_wait = None
            time.sleep(POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)
