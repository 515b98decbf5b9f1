"""Cell files into parts. Append-only: a part is on disk and readable before what went into it is removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from kvfrontier.store.attempts import ATTEMPT, newest_of
from kvfrontier.store.ledger import write_ledger
from kvfrontier.store.lock import held
from kvfrontier.store.parts import Damaged, group_of, list_parts, read_part, set_aside, write_part
from kvfrontier.store.rows import cell_file, read_cell_file, without_repeats
from kvfrontier.store.schema import ROW
from kvfrontier.store.sound import require_sound

SMALL_PART_BYTES = (2**16, 8 * 2**20)
"""Of what workers write for a few quick cells, and of a shard: the first are not merged with the second each time."""
MAX_SMALL_PARTS = 8

logger = logging.getLogger(__name__)


def fold(campaign_dir: Path, shard: str, fingerprints: Sequence[str]) -> Path:
    """Move the shard's loose rows into a part and write its ledger; returns the ledger's path.

    A crash at any point loses nothing and counts nothing twice: what is in a part already is only removed.
    """
    group = group_of(shard)
    with held(campaign_dir / "store" / ".lock", "folding rows into parts"):
        loose = [path for fingerprint in fingerprints if (path := cell_file(campaign_dir, fingerprint)).exists()]
        rows = _read_loose(loose)
        if rows:
            write_part(campaign_dir, group, pa.concat_tables(rows))
        for path in loose:
            path.unlink(missing_ok=True)
        _compact(campaign_dir, group)
        folded = _read_sound(list_parts(campaign_dir, group), lambda path: read_part(path, ATTEMPT))
        newest = {name: row.stored for name, row in newest_of(folded, fingerprints).items()}
        return write_ledger(campaign_dir, shard, fingerprints, newest)


def _compact(campaign_dir: Path, group: str) -> None:
    """Merge a group's small parts once there are many, so that a hundred re-runs do not leave a hundred files."""
    for size_bytes in SMALL_PART_BYTES:
        small = [path for path in list_parts(campaign_dir, group) if path.lstat().st_size < size_bytes]
        if len(small) > MAX_SMALL_PARTS:
            merged = without_repeats(pa.concat_tables([ROW.empty_table(), *_read_sound(small, read_part)]))
            kept = write_part(campaign_dir, group, merged)
            for path in small:
                if path != kept:
                    path.unlink(missing_ok=True)


def _read_loose(paths: list[Path]) -> list[pa.Table]:
    """See `_read_sound`. Rows are judged together, which is far quicker, and one by one where some are not sound."""
    rows = _read_sound(paths, lambda path: read_cell_file(path, is_judged=False))
    try:
        require_sound(pa.concat_tables([ROW.empty_table(), *rows]))
    except ValueError:
        return _read_sound(paths, read_cell_file)
    return rows


def _read_sound(paths: list[Path], read: Callable[[Path], pa.Table]) -> list[pa.Table]:
    """What can be read; the rest is set aside (and missing from `paths` afterwards), named in the log."""
    tables = []
    for path in list(paths):
        try:
            tables.append(read(path))
        except Damaged as damage:
            paths.remove(path)
            try:
                where = f"kept as {set_aside(path).name}"
            except OSError as error:
                where = f"left where it is ({error.strerror})"
            logger.warning("%s; %s", damage, where)
        except OSError as error:
            paths.remove(path)
            logger.warning("%s: cannot be read (%s); left where it is", path, error.strerror)
    return tables
