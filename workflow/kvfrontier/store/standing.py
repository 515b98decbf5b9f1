"""Where each planned cell stands: stored, to be measured and why, or known to be impossible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kvfrontier.plan.fingerprint import changed_parts
from kvfrontier.store.attempts import Stored
from kvfrontier.store.ledger import stored_rows
from kvfrontier.store.rows import read_table

NEW = "new"


class Standing(NamedTuple):
    """state: `stored` (final), `measure` or `unsupported`. changes: part -> (before, now) for a stale cell.

    reason: `new`, `changed: strategy_code, ...`, `tried again after error`, or what stands in the store.
    """

    state: Literal["stored", "measure", "unsupported"]
    reason: str
    changes: Mapping[str, tuple[str, str]] = {}


def standings(
    plan: pa.Table, campaign_dir: Path, max_attempts: int, ignore: Iterable[str] = ()
) -> tuple[list[Standing], list[str]]:
    """One Standing for each row of a plan (`plan.table.PLAN`), and a line for every damaged file of the store."""
    stored, damaged = stored_rows(campaign_dir)
    fingerprints = plan.column("fingerprint").to_pylist()
    missing = pc.invert(pc.is_in(plan.column("fingerprint"), pa.array(list(stored), pa.string())))
    previous = _previous_parts(campaign_dir, plan.filter(missing).column("cell_id")) if stored else {}
    columns = (plan.column(name).to_pylist() for name in ("cell_id", "status", "reason"))
    found = []
    for index, (fingerprint, cell_id, status, reason) in enumerate(zip(fingerprints, *columns, strict=True)):
        if status:
            found.append(Standing("unsupported", reason or status))
        elif fingerprint in stored:
            found.append(_standing_of(stored[fingerprint], max_attempts))
        elif cell_id in previous:
            parts = dict(plan.column("parts")[index].as_py())
            found.append(_stale(parts, previous[cell_id], ignore))
        else:
            found.append(Standing("measure", NEW))
    return found, damaged


def _standing_of(row: Stored, max_attempts: int) -> Standing:
    if row.is_final(max_attempts):
        return Standing("stored", row.status)
    return Standing("measure", f"tried again after {row.status}")


def _stale(now: Mapping[str, str], before: Mapping[str, str], ignore: Iterable[str]) -> Standing:
    names = changed_parts(now, before, ignore)
    changes = {name: (before.get(name, "(none)"), now.get(name, "(none)")) for name in names}
    return Standing("measure", f"changed: {', '.join(names) or 'which parts count'}", changes)


def _previous_parts(campaign_dir: Path, cell_ids: pa.ChunkedArray) -> dict[str, dict[str, str]]:
    """Parts of the newest row of each of these cells, whatever its fingerprint."""
    if not len(cell_ids):
        return {}
    rows, _ = read_table(campaign_dir, ["cell_id", "started_at", "attempt", "parts"])
    rows = rows.filter(pc.is_in(rows.column("cell_id"), cell_ids.unique()))
    rows = rows.sort_by([("started_at", "ascending"), ("attempt", "ascending")])
    return {row["cell_id"]: dict(row["parts"] or ()) for row in rows.select(["cell_id", "parts"]).to_pylist()}
