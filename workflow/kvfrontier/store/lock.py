"""Locks that die with their holder: flock on a file, so that `kill -9` leaves nothing to unlock."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.store.files import explained

POLL_S = 0.5
LOOKS = 3
LOOK_S = 0.05
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


class Busy(KVFrontierError):
    """Another process holds the lock; the message names it."""


def acquire(path: Path, purpose: str) -> int:
    """Take the lock now or raise Busy. Returns the descriptor; closing it, or the end of the process, releases."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(descriptor)
    except BlockingIOError:
        busy = _busy(descriptor, purpose)
        os.close(descriptor)
        raise busy from None
    except OSError as error:
        os.close(descriptor)
        if error.errno not in _NO_LOCKS:
            raise
        advice = "set KVFRONTIER_RESULTS to a folder on another one, or mount it with locks (Lustre: -o flock)"
        raise Unavailable(f"the file system of {path} has no file locks; {advice}") from error
    note = f"process {os.getpid()} on {socket.gethostname()} (since {time.strftime('%Y-%m-%d %H:%M:%S')})"
    with explained(path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)
    return descriptor


def _lock(descriptor: int) -> None:
    """Take it; `holder_of` in another process may hold it for a moment, so only a longer refusal counts."""
    for _ in range(LOOKS):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_S)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _busy(descriptor: int, purpose: str) -> Busy:
    holder = os.read(descriptor, 4096).decode(errors="replace").strip() or "another process"
    return Busy(f"{purpose} is already being done by {holder}.")


def holder_of(path: Path, purpose: str) -> Busy | None:
    """What `acquire` would raise now; writes nothing."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _busy(file.fileno(), purpose)
    except OSError:
        pass  # nobody has ever held it, or the file system has no locks: `acquire` tells
    return None


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
