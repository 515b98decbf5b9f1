"""Drop what nothing refers to. Rows go with their part: the part without them is written before the old one is removed.

Killed at any point, no row that a plan refers to is lost, and none is counted twice (`rows.without_repeats`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.plan.disk import read_cells
from kvfrontier.store.files import explained, is_left, leftovers
from kvfrontier.store.heartbeat import FOLDER as HEARTBEATS
from kvfrontier.store.lock import Busy, held, holder_of
from kvfrontier.store.parts import Damaged, list_parts, read_part, write_part
from kvfrontier.store.rows import loose_files, read_cell_file
from kvfrontier.store.running import hold

KEYS = ("cell_id", "fingerprint", "attempt", "started_at")
PRUNED = ".pruned-"

STALE = "rows of versions that are not planned any more"
SUPERSEDED = "earlier attempts at planned cells"
DAMAGED = "damaged files that were set aside"
LEFTOVERS = "leftovers of killed processes"
LOGS = "logs of shards that are not planned any more"
FOLDER = "results of campaigns without a file"
KINDS = (STALE, SUPERSEDED, DAMAGED, LEFTOVERS, LOGS, FOLDER)


@dataclass
class Tally:
    """What goes (rows or files, and bytes, by kind) and which rows stay.

    bytes of rows inside a part are its size in proportion. last_known: rows of older versions that stay because the
    planned version of their cell has not been measured yet.
    """

    counts: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    kept_rows: int = 0
    last_known: int = 0

    def add(self, kind: str, count: int, size: int) -> None:
        """Note something that goes."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            self.bytes[kind] = self.bytes.get(kind, 0) + size


@dataclass
class Survey:
    """What would be done: `rows` is every stored row (KEYS, its file, and which kind it goes as; empty: it stays)."""

    campaign_dir: Path
    rows: pa.Table
    files: list[tuple[str, Path]]
    tally: Tally


def survey(campaign_dir: Path, attempts: bool = False, logs: bool = False) -> Survey:
    """Look, and change nothing. Raises Unavailable where there is no plan: everything would seem to be stale.

    attempts: earlier attempts at planned cells go too. logs: so do the logs of shards that are not in the plan.
    """
    plan = read_cells(campaign_dir)
    rows = _stored(campaign_dir)
    kinds = _kinds(rows, plan, attempts)
    rows = rows.append_column("kind", kinds)
    files = [*_damaged(campaign_dir), *_leftovers(campaign_dir)]
    if logs:
        files += _logs(campaign_dir, set(plan.column("shard").to_pylist()))
    return Survey(campaign_dir, rows, files, _tally(rows, plan, files))


def prune(campaign_dir: Path, attempts: bool = False, logs: bool = False) -> Tally:
    """Do what `survey` says. Raises Busy while the campaign runs or one of its shards is measured."""
    with _alone(campaign_dir), explained(campaign_dir):
        found = survey(campaign_dir, attempts, logs)
        for name, doomed in _going(found.rows).items():
            _prune_file(Path(name), doomed)
        for _, path in found.files:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        return found.tally


def folder_tally(campaign_dir: Path) -> Tally:
    """What a whole folder of results holds."""
    tally = Tally()
    tally.add(FOLDER, 1, _size(campaign_dir))
    return tally


def remove_folder(campaign_dir: Path) -> Tally:
    """Remove all results of a campaign: renamed first (PRUNED), so that no half of a campaign is ever there."""
    with _alone(campaign_dir), explained(campaign_dir):
        tally = folder_tally(campaign_dir)
        doomed = campaign_dir.rename(campaign_dir.with_name(f"{PRUNED}{campaign_dir.name}.{os.getpid()}"))
    shutil.rmtree(doomed)
    return tally


@contextmanager
def _alone(campaign_dir: Path) -> Iterator[None]:
    """Nobody measures or folds meanwhile. Whoever begins to measure a shard now only adds rows of planned cells."""
    with ExitStack() as stack:
        stack.callback(os.close, hold(campaign_dir))
        for path in sorted((campaign_dir / "ledgers").glob(".*.lock")):
            busy = holder_of(path, f"measuring {path.name[1 : -len('.lock')]}")
            if busy:
                raise Busy(f"{busy} Prune when it has ended.")
        stack.enter_context(held(campaign_dir / "store" / ".lock", "folding rows into parts"))
        yield


def _stored(campaign_dir: Path) -> pa.Table:
    """KEYS and file of every readable row. What cannot be read stays where it is."""
    tables = [pa.table({**{name: [] for name in KEYS}, "file": []}).cast(_SCHEMA)]
    for path in (*list_parts(campaign_dir), *loose_files(campaign_dir)):
        read = read_part if path.parent.name == "store" else read_cell_file
        try:
            rows = read(path, KEYS)
        except (Damaged, OSError):
            continue
        tables.append(rows.append_column("file", pa.array([str(path)] * len(rows), pa.string())).cast(_SCHEMA))
    return pa.concat_tables(tables)


_SCHEMA = pa.schema(
    [
        ("cell_id", pa.string()),
        ("fingerprint", pa.string()),
        ("attempt", pa.int32()),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("file", pa.string()),
    ]
)


def _kinds(rows: pa.Table, plan: pa.Table, attempts: bool) -> pa.Array:
    """For each row the kind it goes as, or an empty text."""
    planned = dict(zip(plan.column("fingerprint").to_pylist(), plan.column("cell_id").to_pylist(), strict=True))
    columns = [rows.column(name).to_pylist() for name in ("fingerprint", "attempt")]
    newest: dict[str, int] = {}
    for fingerprint, attempt in zip(*columns, strict=True):
        newest[fingerprint] = max(attempt, newest.get(fingerprint, 0))
    waiting = {cell_id for fingerprint, cell_id in planned.items() if fingerprint not in newest}
    last_known = _last_known(rows, waiting)
    kinds = []
    for fingerprint, attempt in zip(*columns, strict=True):
        if fingerprint in planned:
            kinds.append(SUPERSEDED if attempts and attempt < newest[fingerprint] else "")
        else:
            kinds.append("" if fingerprint in last_known else STALE)
    return pa.array(kinds, pa.string())


def _last_known(rows: pa.Table, cell_ids: set[str]) -> set[str]:
    """The newest version of each of these cells: `explain` and the estimates go by it until the cell is measured."""
    newest: dict[str, tuple] = {}
    columns = (rows.column(name) for name in ("cell_id", "started_at", "attempt", "fingerprint"))
    cells, started, attempts, names = columns
    times = started.cast(pa.int64()).to_pylist()
    for cell_id, *key in zip(cells.to_pylist(), times, attempts.to_pylist(), names.to_pylist(), strict=True):
        if cell_id in cell_ids:
            newest[cell_id] = max(tuple(key), newest.get(cell_id, (-(2**63), 0, "")))
    return {key[-1] for key in newest.values()}


def _tally(rows: pa.Table, plan: pa.Table, files: list[tuple[str, Path]]) -> Tally:
    tally = Tally()
    in_file: dict[str, int] = {}
    names, kinds = rows.column("file").to_pylist(), rows.column("kind").to_pylist()
    for name in names:
        in_file[name] = in_file.get(name, 0) + 1
    sizes = {name: Path(name).stat().st_size for name in in_file}
    for name, kind in zip(names, kinds, strict=True):
        if kind:
            tally.add(kind, 1, sizes[name] // in_file[name])
    kept = rows.filter(pc.equal(rows.column("kind"), ""))
    planned = pc.is_in(kept.column("fingerprint"), plan.column("fingerprint").combine_chunks())
    tally.kept_rows = len(kept)
    tally.last_known = len(kept) - (pc.sum(planned).as_py() or 0)
    for kind, path in files:
        tally.add(kind, 1, _size(path))
    return tally


def _going(rows: pa.Table) -> dict[str, set[tuple[str, int]]]:
    """(fingerprint, attempt) of the rows that go, by the file they are in."""
    going: dict[str, set[tuple[str, int]]] = {}
    columns = (rows.column(name).to_pylist() for name in ("file", "fingerprint", "attempt", "kind"))
    for name, fingerprint, attempt, kind in zip(*columns, strict=True):
        if kind:
            going.setdefault(name, set()).add((fingerprint, attempt))
    return going


def _prune_file(path: Path, doomed: set[tuple[str, int]]) -> None:
    """Rewrite a part without some of its rows, or remove a file that holds nothing else."""
    if path.parent.name == "store":
        rows = read_part(path)
        keys = zip(rows.column("fingerprint").to_pylist(), rows.column("attempt").to_pylist(), strict=True)
        kept = rows.filter(pa.array([key not in doomed for key in keys], pa.bool_()))
        if len(kept):
            write_part(path.parent.parent, path.name.partition("-")[0], kept)
    path.unlink(missing_ok=True)


def _damaged(campaign_dir: Path) -> Iterator[tuple[str, Path]]:
    yield from ((DAMAGED, path) for path in sorted(campaign_dir.rglob("*.damaged")))


def _leftovers(campaign_dir: Path) -> Iterator[tuple[str, Path]]:
    """What a writer that was killed has left: its temporary names, and the heartbeats of drivers."""
    heartbeats = sorted((campaign_dir / HEARTBEATS).glob("*.json"))
    yield from ((LEFTOVERS, path) for path in (*leftovers(campaign_dir), *filter(is_left, heartbeats)))


def _logs(campaign_dir: Path, shards: set[str]) -> Iterator[tuple[str, Path]]:
    for path in sorted((campaign_dir / "logs" / "measure").glob("*.log")):
        if path.stem not in shards:
            yield LOGS, path


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    paths = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(item.lstat().st_size for item in paths if item.is_symlink() or item.is_file())
