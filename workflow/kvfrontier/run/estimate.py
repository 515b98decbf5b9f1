"""How long cells will take: from rows of their own, from rows of cells like them, or from the cost model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from kvfrontier.costmodel.whole_cell import modelled_s
from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.plan.catalog import load_devices, load_models
from kvfrontier.plan.disk import read_index
from kvfrontier.plan.project import Project
from kvfrontier.registry import ENGINES, WORKLOADS, Registry
from kvfrontier.store.rows import read_files
from kvfrontier.store.schema import ROW

PAST = ("cell_id", "cell", "status", "source", "attempt", "started_at", "wall_s")
SIMULATED_S = 0.002
"""A cell whose numbers come from a model is computed, not run: it takes this long, whatever time it stands for."""

_KINDS = """
CREATE TEMP TABLE wanted AS
SELECT * EXCLUDE (parameters), (parameters::JSON->'engine')::VARCHAR AS engine_settings,
  (parameters::JSON->'workload')::VARCHAR AS workload_settings
FROM planned;
-- The newest row of each cell that says how long it takes. One that timed out takes at least as long as it was given.
CREATE TEMP TABLE done AS
SELECT cell_id, source, said->>'$.model' AS model, said->>'$.engine.name' AS engine, said->>'$.device' AS device,
  said->>'$.strategy.name' AS strategy, said->>'$.workload.name' AS workload,
  (said->'$.engine')::VARCHAR AS engine_settings, (said->'$.workload')::VARCHAR AS workload_settings,
  greatest(CASE status WHEN 'ok' THEN wall_s ELSE getvariable('timeout_s') END, 1e-6) AS seconds
FROM (SELECT *, TRY_CAST(cell AS JSON) AS said FROM past)
WHERE (status = 'ok' AND wall_s IS NOT NULL OR status = 'timeout' AND getvariable('timeout_s') IS NOT NULL)
  AND engine IS NOT NULL AND workload IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY cell_id ORDER BY started_at DESC, attempt DESC) = 1;
CREATE TEMP VIEW kinds AS
SELECT DISTINCT model, device, source, engine_settings, workload_settings
FROM (SELECT * EXCLUDE (number, status) FROM wanted UNION ALL BY NAME SELECT * EXCLUDE (seconds) FROM done)
"""

_ESTIMATES = """
-- How cells of a kind compare with the cost model; where their times scatter less without it, their median counts.
CREATE TEMP TABLE paces AS
SELECT engine, device, workload, model, strategy, median(seconds) AS median_s, median(seconds / cost_s) AS pace,
  coalesce(stddev_samp(ln(seconds / cost_s)) <= stddev_samp(ln(seconds)) + 1e-9, true) AS is_scaled
FROM done JOIN costs USING (model, device, source, engine_settings, workload_settings)
GROUP BY GROUPING SETS (
  (engine, device, workload), (engine, device, workload, model), (engine, device, workload, model, strategy));
CREATE MACRO at_pace(row, cost_s) AS CASE WHEN row.is_scaled THEN row.pace * cost_s ELSE row.median_s END;
SELECT CASE WHEN w.status IS NOT NULL THEN 0 ELSE least(getvariable('timeout_s'), coalesce(d.seconds,
    at_pace(near, cost_s), at_pace(other, cost_s), at_pace(far, cost_s), cost_s)) END AS seconds,
  CASE WHEN d.seconds IS NOT NULL THEN 'measured' WHEN coalesce(near.pace, other.pace, far.pace) IS NOT NULL
    THEN 'similar' ELSE 'model' END AS basis
FROM wanted w JOIN costs USING (model, device, source, engine_settings, workload_settings)
LEFT JOIN done d USING (cell_id)
LEFT JOIN paces near ON (near.engine, near.device, near.workload, near.model, near.strategy)
  = (w.engine, w.device, w.workload, w.model, w.strategy)
LEFT JOIN paces other ON (other.engine, other.device, other.workload, other.model)
  = (w.engine, w.device, w.workload, w.model) AND other.strategy IS NULL
LEFT JOIN paces far ON (far.engine, far.device, far.workload) = (w.engine, w.device, w.workload) AND far.model IS NULL
ORDER BY number
"""


class Estimate(NamedTuple):
    """basis: `measured` (a row of the same cell), `similar` (rows of the same engine, device and workload), `model`."""

    seconds: float
    basis: str


def estimates(plan: pa.Table, campaign_dir: Path, project: Project) -> list[Estimate]:
    """One Estimate for each row of a plan (`plan.table.PLAN`), whether it is stored or not; its own work alone.

    Without the loading of models. A cell that cannot run takes no time; none takes longer than the campaign's timeout.
    """
    tables, _ = read_files(campaign_dir, PAST)
    past = pa.concat_tables([pa.schema([ROW.field(name) for name in PAST]).empty_table(), *tables])
    names = ("cell_id", "parameters", "model", "engine", "device", "strategy", "workload", "source", "status")
    numbered = plan.select(names).append_column("number", pa.array(range(len(plan)), pa.int64()))
    with duckdb.connect() as connection:
        connection.register("planned", numbered)
        connection.register("past", past)
        connection.execute("SET VARIABLE timeout_s = ?", [_timeout_s(campaign_dir)])
        connection.execute(_KINDS)
        connection.register("costs", _costs(connection.execute("FROM kinds").fetchall(), project))
        return [Estimate(*row) for row in connection.execute(_ESTIMATES).fetchall()]


def _timeout_s(campaign_dir: Path) -> float | None:
    try:
        return read_index(campaign_dir).timeout_s
    except Unavailable:
        return None


def _costs(kinds: list[tuple[str, str, str, str, str]], project: Project) -> pa.Table:
    """What the cost model says of each kind of cell: (model, device, source, engine and workload as JSON)."""
    models, devices = load_models(project), load_devices(project)
    seconds = []
    for model, device, source, engine, workload in kinds:
        if source == "model":
            seconds.append(SIMULATED_S)
            continue
        try:
            spec = models[model].spec
        except (KeyError, KVFrontierError):  # a row of a model that the catalog, or the disk, no longer has
            spec = None
        settings = [_with_defaults(*pair) for pair in ((ENGINES, engine), (WORKLOADS, workload))]
        seconds.append(modelled_s(spec, devices.get(device), *settings))
    names = ("model", "device", "source", "engine_settings", "workload_settings")
    columns = {name: [kind[place] for kind in kinds] for place, name in enumerate(names)}
    types = [*((name, pa.string()) for name in names), ("cost_s", pa.float64())]
    return pa.table({**columns, "cost_s": seconds}, schema=pa.schema(types))


def _with_defaults(registry: Registry, text: str) -> Mapping[str, Any]:
    """Settings as a row has them (those that differ from the defaults), with the others filled in."""
    settings = json.loads(text)
    return {**_defaults(registry, str(settings["name"])), **settings}


@lru_cache(maxsize=256)
def _defaults(registry: Registry, name: str) -> Mapping[str, Any]:
    try:
        plugin = registry.get(name)
    except (KVFrontierError, ImportError):  # a plugin that has been taken out: its rows still say how long it took
        return {}
    return {field.name: field.default for field in fields(plugin) if field.default is not MISSING}
