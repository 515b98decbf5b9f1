"""What Snakemake, which goes by times, would take for up to date and is not: damaged, another's, or from the future."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import duckdb

from kvfrontier.store.database import database_path
from kvfrontier.store.newest import plan_key, rows_key

logger = logging.getLogger(__name__)

TOLERANCE_S = 60.0
"""So far the clock of a file server may be ahead of ours."""
LONG_AGO_S = 1.0
"""Not 0, which Snakemake takes for no time at all."""
NOT_DAMAGED = ("Could not set lock", "Permission denied", "Too many open files")
"""Are in what DuckDB says of a database that another program writes to just now, or that we cannot open."""


def is_outdated(campaign_dir: Path, inputs: Iterable[str]) -> bool:
    """Whether the database and the report must be made again. Removes a database that is none.

    Times in the future (the clock was wrong, then or now) are taken back. On what is presented they would hide whatever
    comes next; on what rules read (`inputs`: ledgers, receipts) each job would fail, for its output would be older.
    """
    presented = [database_path(campaign_dir), *(campaign_dir / name for name in ("report.html", "verdict.txt"))]
    found = [_take_back(path) for path in (*presented, *map(Path, inputs))]
    return any(found) or not _is_of_these_rows(campaign_dir, presented[0])


def _take_back(path: Path) -> bool:
    with suppress(OSError):
        if path.stat().st_mtime > time.time() + TOLERANCE_S:
            logger.warning("%s is from the future: was the clock set back?", path)
            os.utime(path, (LONG_AGO_S, LONG_AGO_S))
            return True
    return False


def _is_of_these_rows(campaign_dir: Path, path: Path) -> bool:
    """True also where there is no database: Snakemake sees that."""
    if not os.path.lexists(path):
        return True
    try:
        keys = _keys(path)
    except duckdb.CatalogException:  # it is whole, and made by an older version or somebody else
        return False
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException) or any(why in str(error) for why in NOT_DAMAGED):
            return True
        logger.warning("not a whole DuckDB file, made again: %s", path)
        _remove(path)
        return True
    return keys == [(plan_key(campaign_dir), rows_key(campaign_dir))]


def _keys(path: Path) -> list[tuple[str, str]]:
    """What a database says that it was made of, once all of it could be read: DuckDB has a checksum for each block."""
    with duckdb.connect(path, read_only=True) as connection:
        for (table,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            quoted = table.replace('"', '""')
            connection.execute(f'SELECT count(COLUMNS(*)) FROM "{quoted}"').fetchall()
        return connection.execute("SELECT plan_key, rows_key FROM build").fetchall()


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
