"""Planned cells as an Arrow table and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from kvfrontier.plan.cell import Cell, Component
from kvfrontier.plan.planned import Plan, PlannedCell

ROWS_IN_GROUP = 1000
"""A Parquet row group holds whole shards and at least so many cells (a group a shard is slow for tiny shards)."""

PLAN = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        pa.field("cell_id", pa.string(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("cell", pa.string(), nullable=False),  # Cell.as_dict() as JSON
        pa.field("parts", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("parameters", pa.string(), nullable=False),  # engine, strategy, workload with all defaults, as JSON
        pa.field("model", pa.string(), nullable=False),
        pa.field("engine", pa.string(), nullable=False),  # the plugin's name
        pa.field("device", pa.string(), nullable=False),
        pa.field("strategy", pa.string(), nullable=False),  # the plugin's name
        pa.field("strategy_label", pa.string(), nullable=False),  # with the parameters that are not the default
        pa.field("budget", pa.float64()),  # a share in (0, 1] or a token count above 1; null: the strategy has none
        pa.field("workload", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("batch_size", pa.int64()),
        pa.field("context_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),  # measured | model
        pa.field("status", pa.string()),  # null: to run; else unsupported | infeasible
        pa.field("reason", pa.string()),
    ]
)


def plan_batches(plan: Plan) -> Iterator[pa.Table]:
    """The plan as tables of whole shards, each of at least ROWS_IN_GROUP rows but for the last."""
    texts = _Texts()
    rows: list[tuple[str, PlannedCell]] = []
    for shard in plan.shards:
        rows += [(shard.name, cell) for cell in plan.members[shard.name]]
        if len(rows) >= ROWS_IN_GROUP:
            yield _table(rows, texts)
            rows = []
    if rows:
        yield _table(rows, texts)


def cells_of(table: pa.Table) -> list[PlannedCell]:
    """Inverse: the planned cells of a table's rows."""
    columns = ["cell_id", "fingerprint", "cell", "parts", "parameters", "task", "source", "status", "reason"]
    return [_planned(row) for row in table.select(columns).to_pylist()]


def _planned(row: dict[str, Any]) -> PlannedCell:
    parts = dict(row["parts"])
    return PlannedCell(
        cell=Cell.from_dict(json.loads(row["cell"])),
        cell_id=row["cell_id"],
        fingerprint=row["fingerprint"],
        context={name: value for name, value in parts.items() if name != "cell"},
        parameters=json.loads(row["parameters"]),
        task=row["task"],
        source=row["source"],
        status=row["status"],
        reason=row["reason"] or "",
    )


class _Texts:
    """JSON of what many cells share, made once each."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        """Compact JSON of a shared object, by identity."""
        if id(value) not in self._made:
            self._made[id(value)] = value, json.dumps(value, separators=(",", ":"), sort_keys=True)
        return self._made[id(value)][1]

    def cell(self, cell: Cell) -> str:
        """JSON of `Cell.as_dict()`, its components taken from what was made before."""
        parts = [f'"{name}":{self._component(getattr(cell, name))}' for name in ("engine", "strategy", "workload")]
        names = [f'"{name}":{json.dumps(getattr(cell, name))}' for name in ("model", "device", "seed")]
        return f"{{{','.join([*names, *parts])}}}"

    def _component(self, component: Any) -> str:
        if id(component) not in self._made:
            self._made[id(component)] = component, json.dumps(component.as_dict(), separators=(",", ":"))
        return self._made[id(component)][1]

    def parameters(self, parameters: Any) -> str:
        """JSON of `PlannedCell.parameters`."""
        sections = [f'"{name}":{self.of(section)}' for name, section in parameters.items()]
        return f"{{{','.join(sections)}}}"


def _table(rows: list[tuple[str, PlannedCell]], texts: _Texts) -> pa.Table:
    cells = [planned for _, planned in rows]
    workloads = [planned.parameters["workload"] for planned in cells]
    strategies = [planned.parameters["strategy"] for planned in cells]
    columns = {
        "shard": [name for name, _ in rows],
        "cell_id": [planned.cell_id for planned in cells],
        "fingerprint": [planned.fingerprint for planned in cells],
        "cell": [texts.cell(planned.cell) for planned in cells],
        "parts": _parts(cells),
        "parameters": [texts.parameters(planned.parameters) for planned in cells],
        "model": [planned.cell.model for planned in cells],
        "engine": [planned.cell.engine.name for planned in cells],
        "device": [planned.cell.device for planned in cells],
        "strategy": [planned.cell.strategy.name for planned in cells],
        "strategy_label": [_label(planned) for planned in cells],
        "budget": [_number(section.get("budget"), float) for section in strategies],
        "workload": [planned.cell.workload.name for planned in cells],
        "task": [planned.task for planned in cells],
        **{
            name: [_number(section.get(name), int) for section in workloads]
            for name in ("batch_size", "context_tokens", "output_tokens")
        },
        "seed": [planned.cell.seed for planned in cells],
        "source": [planned.source for planned in cells],
        "status": [planned.status for planned in cells],
        "reason": [planned.reason or None for planned in cells],
    }
    return pa.Table.from_pydict(columns, schema=PLAN)


def _label(planned: PlannedCell) -> str:
    """The strategy's label with its budget always in it: next to `h2o(budget=0.5)`, a bare `h2o` says too little."""
    component, budget = planned.cell.strategy, planned.parameters["strategy"].get("budget")
    if budget is None:
        return component.label
    others = tuple(item for item in component.params if item[0] != "budget")
    return Component(component.name, (("budget", budget), *others)).label


def _number(value: Any, kind: type) -> Any:
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _parts(cells: list[PlannedCell]) -> pa.Array:
    """The map column, built flat: a dict a cell would take most of the time of writing a plan."""
    offsets, keys, values = [0], [], []
    shared = {id(planned.context): planned.context for planned in cells}
    flat = {key: (("cell", *context), tuple(context.values())) for key, context in shared.items()}
    for planned in cells:
        names, items = flat[id(planned.context)]
        keys += names
        values.append(planned.cell_id)
        values += items
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )
