"""The newest row of every fingerprint, kept up to date cheaply: only files that were not there before are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from kvfrontier.plan.believed import read_plan
from kvfrontier.store.attempts import ATTEMPT, Rows, keep_newer, newest_of
from kvfrontier.store.parts import Damaged, list_parts, read_part
from kvfrontier.store.rows import read_cell_file

COLUMNS = (*ATTEMPT, "reason")


class LooseFile(NamedTuple):
    """Changes when the row is measured again."""

    path: str
    changed_ns: int
    size: int


def loose_listing(campaign_dir: Path) -> list[LooseFile]:
    """The cell files that are not folded yet, sorted."""
    found = []
    for folder in _entries(campaign_dir / "cells"):
        for entry in _entries(folder.path):
            if entry.name.endswith(".parquet") and not entry.name.startswith("."):
                try:
                    status = entry.stat()
                except OSError:
                    continue  # folded just now
                found.append(LooseFile(entry.path, status.st_mtime_ns, status.st_size))
    return sorted(found)


def _entries(folder: str | Path) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def rows_key(campaign_dir: Path) -> str:
    """Names the stored rows: another one whenever a row has come, gone or been folded."""
    loose = [(Path(file.path).name, file.changed_ns, file.size) for file in loose_listing(campaign_dir)]
    parts = [path.name for path in list_parts(campaign_dir)]
    return hashlib.sha256(repr((loose, parts)).encode()).hexdigest()[:32]


def plan_key(campaign_dir: Path) -> str:
    """Names the planned cells: the name of a shard ends with a hash of its cells' fingerprints."""
    shards = read_plan(campaign_dir, ["shard"])["shard"]
    return hashlib.sha256(repr(sorted(shards.unique().to_pylist())).encode()).hexdigest()[:32]


class Newest:
    """Remembers what each file held: a part never changes, and a cell file is another one when it does."""

    def __init__(self, campaign_dir: Path):
        self._campaign_dir = campaign_dir
        self._parts: dict[Path, Rows] = {}
        self._loose: dict[LooseFile, Rows] = {}

    def read(self) -> Rows:
        """As things are now. Damaged files count as nothing: their cells have no row."""
        # Loose files first: one that is folded meanwhile is in a part by the time those are listed.
        listing = loose_listing(self._campaign_dir)
        loose = {file: self._loose[file] if file in self._loose else _read_loose(file) for file in listing}
        self._loose = {file: rows for file, rows in loose.items() if rows is not None}
        while (parts := self._read_parts()) is None:
            pass  # merged into another one under us: list again
        self._parts = parts
        newest: Rows = {}
        for rows in (*self._parts.values(), *self._loose.values()):
            for name, row in rows.items():
                keep_newer(newest, name, row)
        return newest

    def _read_parts(self) -> dict[Path, Rows] | None:
        parts = {}
        for path in list_parts(self._campaign_dir):
            try:
                parts[path] = self._parts[path] if path in self._parts else newest_of([read_part(path, COLUMNS)])
            except FileNotFoundError:
                if path.is_symlink():
                    continue  # dangling: it stays in the listing
                return None
            except Damaged:
                parts[path] = {}
            except OSError:
                continue  # a file server that stumbled, perhaps: not to be remembered
        return parts


def _read_loose(file: LooseFile) -> Rows | None:
    try:
        return newest_of([read_cell_file(Path(file.path), COLUMNS)])
    except Damaged:
        return {}
    except OSError:
        return None
