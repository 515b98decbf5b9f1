"""The user's cache: one folder outside the checkout for what is downloaded or converted once."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvfrontier.errors import Unavailable
from kvfrontier.plan.project import kvfrontier_cache
from kvfrontier.units import format_bytes

logger = logging.getLogger(__name__)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name` of the cache: two jobs never fetch or convert the same thing at once.

    The kernel drops the lock when its holder dies, so a killed job blocks nobody.
    """
    folder = make_folder(kvfrontier_cache() / "locks")
    with open(folder / f"{name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process is preparing %s: waiting for it", name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def workspace(parent: Path, name: str) -> Iterator[Path]:
    """A fresh folder inside `parent`, on the same file system so that results can be renamed into place.

    Removed at the end; what a killed process left under the same `name` is removed first (hold the lock `name`).
    """
    prefix = f".partial-{name}-"
    for leftover in make_folder(parent).glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        yield Path(folder)


def make_folder(path: Path) -> Path:
    """Create `path`; raises Unavailable where that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot write to the cache folder {path} ({error.strerror}). "
            "Set KVFRONTIER_CACHE to a folder you can write to, with about 1 GB free."
        ) from error
    return path


def require_room(folder: Path, size_bytes: int) -> None:
    """Raise Unavailable where the disk of `folder` has no room for so much: an archive may declare any size."""
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise Unavailable(
            f"{format_bytes(size_bytes)} do not fit in the cache folder {folder}, {format_bytes(free_bytes)} are free. "
            "Set KVFRONTIER_CACHE to a folder on another disk"
        )


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
