"""From a campaign to its plan: cells, what is known to be impossible, fingerprints, shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from kvfrontier.plan.axes import SECTIONS
from kvfrontier.plan.campaign import Campaign
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.plan.code import CodeBase
from kvfrontier.plan.device import Device
from kvfrontier.plan.environment import qualified
from kvfrontier.plan.feasible import Feasibility
from kvfrontier.plan.fingerprint import Fingerprints, fingerprint
from kvfrontier.plan.grid import Grid, build_cell, expand
from kvfrontier.plan.options import REGISTRIES, Option
from kvfrontier.plan.planned import Plan, PlannedCell
from kvfrontier.plan.project import Project
from kvfrontier.plan.shards import make_shards


def build_plan(project: Project, campaign: Campaign, code: CodeBase | None = None) -> Plan:
    """Plan a campaign; raises ConfigError when no cell of it can run. `code`: the package to hash (the running one)."""
    grid = expand(campaign)
    feasibility = Feasibility(campaign)
    ignore = project.settings.fingerprint.ignore
    fingerprints = Fingerprints(campaign, code or CodeBase.installed(), ignore)
    cells = list(_planned_cells(campaign, grid, feasibility, fingerprints))
    feasibility.require_runnable(cells)
    shards = make_shards(cells, campaign.max_cells, lambda engine, device: _process(engine, campaign.devices[device]))
    engines, workloads = (_used(campaign, grid, section) for section in ("engine", "workload"))
    devices = [campaign.devices[option.label] for option in _used(campaign, grid, "device")]
    return Plan(
        campaign=campaign.name,
        shards=tuple(shards),
        members={shard.name: members for shard, members in shards.items()},
        models=tuple(dict.fromkeys(option.label for option in _used(campaign, grid, "model"))),
        data=tuple(sorted({name for option in workloads for name in option.plugin.data()})),
        packages=_packages(engines, devices, workloads),
        notes=(*grid.notes, *feasibility.notes()),
        timeout_s=campaign.timeout_s,
        max_attempts=campaign.max_attempts,
        dropped=grid.dropped,
        duplicates=grid.duplicates,
        workers=campaign.workers,
        nodes=campaign.nodes,
        against=campaign.against,
    )


def instantiate(cell: Cell) -> tuple[Any, Any, Any]:
    """The engine, the strategy and the workload of a cell as validated plugin objects."""
    return _plugin("engine", cell.engine), _plugin("strategy", cell.strategy), _plugin("workload", cell.workload)


@lru_cache(maxsize=4096)
def _plugin(kind: str, component: Component) -> Any:
    return REGISTRIES[kind].get(component.name)(**dict(component.params))


def _process(engine: Component, device: Device) -> Component:
    """An engine with those settings alone that a process cannot change."""
    changes = _plugin("engine", engine).reloadable(device)
    return Component(engine.name, tuple((name, value) for name, value in engine.params if name not in changes))


def _planned_cells(
    campaign: Campaign, grid: Grid, feasibility: Feasibility, fingerprints: Fingerprints
) -> Iterator[PlannedCell]:
    texts = {section: [_json(option) for option in campaign.choices.options[section]] for section in SECTIONS}
    options = campaign.choices.options
    parameters: dict[tuple[int, int, int], dict[str, Any]] = {}
    for combination in grid.combinations:
        m, e, d, w, s, _ = combination
        model, device = options["model"][m].value, options["device"][d].value
        engine, workload, strategy = options["engine"][e], options["workload"][w], options["strategy"][s]
        cell_id = _cell_id([texts[section][index] for section, index in zip(SECTIONS, combination, strict=True)])
        context, parts_hash = fingerprints.parts(model, engine, device, workload, strategy)
        if (e, s, w) not in parameters:
            named = {"engine": engine, "strategy": strategy, "workload": workload}
            parameters[e, s, w] = {name: option.parameters for name, option in named.items()}
        reason = feasibility.judge(model, engine, campaign.devices[device], workload, strategy)
        yield PlannedCell(
            cell=build_cell(campaign.choices, combination),
            cell_id=cell_id,
            fingerprint=fingerprint(cell_id, parts_hash),
            context=context,
            parameters=parameters[e, s, w],
            task=workload.plugin.task,
            source=engine.plugin.source,
            status="unsupported" if reason else None,
            reason=reason,
        )


def _json(option: Option) -> str:
    value = option.value.as_dict() if isinstance(option.value, Component) else option.value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _cell_id(texts: list[str]) -> str:
    """`Cell.cell_id` put together from the parts' JSON, which many cells share (a test holds them equal)."""
    model, engine, device, workload, strategy, seed = texts
    text = (
        f'{{"device":{device},"engine":{engine},"model":{model},"seed":{seed},'
        f'"strategy":{strategy},"workload":{workload}}}'
    )
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _packages(engines: list[Option], devices: list[Device], workloads: list[Option]) -> tuple[str, ...]:
    """What `package_version` is to be asked for: each engine's environment has its own versions."""
    of_workloads = {package for option in workloads for package in option.plugin.packages}
    places = {
        (engine.plugin.environment_on(device), package)
        for engine in engines
        for device in devices
        for package in (*engine.plugin.packages, *of_workloads)
    }
    return tuple(sorted(qualified(package, where) for where, package in places))


def _used(campaign: Campaign, grid: Grid, section: str) -> list[Option]:
    """Options of a section that at least one cell of the grid has."""
    column = SECTIONS.index(section)
    indexes = dict.fromkeys(combination[column] for combination in grid.combinations)
    return [campaign.choices.options[section][index] for index in indexes]
