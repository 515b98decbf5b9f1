"""Cells into shards: those that share a model, an engine and a device, at most `max_cells` together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from kvfrontier.plan.names import bounded, encode_name
from kvfrontier.plan.planned import PlannedCell, Shard

MAX_NAME = 200
"""Characters of a shard's name: with a suffix it stays a legal file name (255 bytes)."""


def make_shards(cells: Iterable[PlannedCell], max_cells: int) -> dict[Shard, tuple[PlannedCell, ...]]:
    """Partition `cells`, keeping their order. A shard's name is its content: equal cells, equal name, anywhere."""
    groups: dict[tuple, list[PlannedCell]] = {}
    for planned in cells:
        cell = planned.cell
        groups.setdefault((cell.model, cell.engine, cell.device), []).append(planned)
    shards: dict[Shard, tuple[PlannedCell, ...]] = {}
    numbers: dict[str, int] = {}
    for (model, engine, device), members in groups.items():
        prefix = f"{encode_name(model)}.{encode_name(engine.name)}.{encode_name(device)}"
        for start in range(0, len(members), max_cells):
            part = tuple(members[start : start + max_cells])
            number = numbers[prefix] = numbers.get(prefix, -1) + 1
            digest = _digest(part)
            name = f"{bounded(prefix, MAX_NAME - 20)}.{number:03d}-{digest}"
            runnable = sum(planned.status is None for planned in part)
            shards[Shard(name, model, device, engine.label, len(part), runnable, digest)] = part
    return shards


def _digest(cells: Sequence[PlannedCell]) -> str:
    """12 hex digits over fingerprints and planned statuses, in any order."""
    lines = sorted(f"{cell.fingerprint}:{cell.status or ''}" for cell in cells)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
