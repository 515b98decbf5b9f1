"""Files that are whole or absent: written aside, fsynced, renamed. What the disk refuses becomes a clear message."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvfrontier.errors import Unavailable

LEFTOVER = re.compile(r"\..+\.tmp|.+\.partial|\.building-.+")
"""What our writers call a file or folder that is not whole yet."""
LEFT_AFTER_S = 3600.0
"""A younger one may still be written to, perhaps by another machine, whose processes we do not see."""

_MEANING = {
    errno.ENOSPC: "the disk is full; free some space there, or set KVFRONTIER_RESULTS to a folder on another disk",
    errno.EDQUOT: "your disk quota is used up; free some space, or set KVFRONTIER_RESULTS to a folder on another disk",
    errno.EROFS: "the file system is read-only; set KVFRONTIER_RESULTS to a folder you can write to",
    errno.EACCES: "you may not write there; set KVFRONTIER_RESULTS to a folder you can write to",
    errno.EPERM: "you may not write there; set KVFRONTIER_RESULTS to a folder you can write to",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder or a missing permission below into Unavailable that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _MEANING:
            raise
        raise Unavailable(f"cannot write {path}: {_MEANING[error.errno]}.") from error


def write_atomically(path: Path, data: bytes) -> Path:
    """Replace `path` by `data`; after a crash at any point the old file or the new one is there, never half of one."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    return path


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable (a rename is only safe once its folder is)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leftovers(folder: Path) -> Iterator[Path]:
    """Files and folders that writers which were killed have left below `folder`."""
    for parent, folders, files in os.walk(folder):
        found = [name for name in (*folders, *files) if LEFTOVER.fullmatch(name)]
        folders[:] = [name for name in folders if name not in found]
        yield from filter(is_left, (Path(parent, name) for name in sorted(found)))


def is_left(path: Path) -> bool:
    """Whether nobody can be writing to it any more."""
    try:
        return path.lstat().st_mtime < time.time() - LEFT_AFTER_S
    except OSError:
        return False


def drop_leftovers(folder: Path) -> None:
    """Remove what `leftovers` finds; what cannot be removed stays."""
    for path in leftovers(folder):
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
