"""What a plan consists of: cells with their fingerprints, in shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvfrontier.plan.cell import Cell

PlannedStatus = Literal["unsupported", "infeasible"]


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell and all that is known of it before it runs.

    context: every part of the fingerprint but the cell itself (shared between cells).
    parameters: `engine`, `strategy`, `workload`, each with its name and every parameter, defaults filled in.
    status: None for a cell to run, else why it will not be, and `reason` in words.
    """

    cell: Cell
    cell_id: str
    fingerprint: str
    context: Mapping[str, str]
    parameters: Mapping[str, Mapping[str, Any]]
    task: str
    source: Literal["measured", "model"]
    status: PlannedStatus | None = None
    reason: str = ""

    @property
    def parts(self) -> dict[str, str]:
        """Part of the fingerprint -> hash or version."""
        return {"cell": self.cell_id, **self.context}


@dataclass(frozen=True, slots=True)
class Shard:
    """Cells of one model, device and engine, in settings that one process can have: one Snakemake job.

    `digest` says what is in it, the name ends with it.
    """

    name: str
    model: str
    device: str
    engine: str
    cells: int
    runnable: int
    digest: str


@dataclass(frozen=True)
class Plan:
    """Everything a campaign asks for. members: the cells of each shard, by its name, in the order of `shards`."""

    campaign: str
    shards: tuple[Shard, ...]
    members: Mapping[str, tuple[PlannedCell, ...]]
    models: tuple[str, ...]
    data: tuple[str, ...]
    packages: tuple[str, ...]
    notes: tuple[str, ...]
    timeout_s: float
    max_attempts: int
    dropped: int = 0
    duplicates: int = 0
    workers: int | None = None
    nodes: int = 1
    against: tuple[str, ...] = ()

    @property
    def cells(self) -> list[PlannedCell]:
        """All cells, shard by shard."""
        return [cell for shard in self.shards for cell in self.members[shard.name]]
