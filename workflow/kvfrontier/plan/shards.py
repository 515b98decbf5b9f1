"""Cells into shards: those that share a model, an engine's process and a device, at most `max_cells` together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from kvfrontier.plan.cell import Component
from kvfrontier.plan.names import bounded, encode_name
from kvfrontier.plan.planned import PlannedCell, Shard

MAX_NAME = 200
"""Characters of a shard's name: with a suffix it stays a legal file name (255 bytes)."""


def make_shards(
    cells: Iterable[PlannedCell], max_cells: int, process_of: Callable[[Component, str], Component]
) -> dict[Shard, tuple[PlannedCell, ...]]:
    """Partition `cells`, engine by engine, in their order. A shard's name is its content: equal cells, equal name.

    process_of: the settings of an engine on a device that its process has for good; a shard's others may differ.
    """
    engines: dict[tuple, list[PlannedCell]] = {}
    for planned in cells:
        cell = planned.cell
        engines.setdefault((cell.model, cell.engine, cell.device), []).append(planned)
    processes: dict[tuple, list[PlannedCell]] = {}
    for (model, engine, device), of_engine in engines.items():
        processes.setdefault((model, process_of(engine, device), device), []).extend(of_engine)
    shards: dict[Shard, tuple[PlannedCell, ...]] = {}
    numbers: dict[str, int] = {}
    for (model, process, device), members in processes.items():
        prefix = f"{encode_name(model)}.{encode_name(process.name)}.{encode_name(device)}"
        for start in range(0, len(members), max_cells):
            part = tuple(members[start : start + max_cells])
            number = numbers[prefix] = numbers.get(prefix, -1) + 1
            digest = _digest(part)
            name = f"{bounded(prefix, MAX_NAME - 20)}.{number:03d}-{digest}"
            runnable = sum(planned.status is None for planned in part)
            shards[Shard(name, model, device, _label(part), len(part), runnable, digest)] = part
    return shards


def _label(cells: Sequence[PlannedCell]) -> str:
    """The engine with its settings, or how many of them there are."""
    labels = list(dict.fromkeys(planned.cell.engine.label for planned in cells))
    return labels[0] if len(labels) == 1 else f"{cells[0].cell.engine.name}, {len(labels)} settings"


def _digest(cells: Sequence[PlannedCell]) -> str:
    """12 hex digits over fingerprints and planned statuses, in any order."""
    lines = sorted(f"{cell.fingerprint}:{cell.status or ''}" for cell in cells)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
