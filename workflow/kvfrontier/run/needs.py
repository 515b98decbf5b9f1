"""What the job of one shard asks of a cluster, from its cells, their model and device, and the campaign's settings."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kvfrontier.errors import KVFrontierError
from kvfrontier.plan.believed import read_plan
from kvfrontier.plan.build import instantiate
from kvfrontier.plan.catalog import Models, load_devices, load_models
from kvfrontier.plan.cell import Cell
from kvfrontier.plan.device import Device
from kvfrontier.plan.disk import PlanIndex
from kvfrontier.plan.model import Model
from kvfrontier.plan.project import Project
from kvfrontier.plan.table import PLAN
from kvfrontier.registry import WORKLOADS
from kvfrontier.run.estimate import estimates
from kvfrontier.run.placement import gpus_per_worker
from kvfrontier.run.slurm_site import longest_minutes
from kvfrontier.store.ledger import stored_rows

if TYPE_CHECKING:
    from kvfrontier.engines.base import Engine

ELEMENT_BYTES = 4
"""Of a weight and of a KV element, on the safe side: float32."""
UNKNOWN_PARAMETERS = 8 * 10**9
"""Of a hub model that has no `shape:` and was never fetched."""
DRIVER_BYTES, WORKER_BYTES, CUDA_BYTES = 2 * 10**9, 2 * 10**9, 6 * 10**9
"""Driver and Ray's own processes; a worker's libraries and activations; what CUDA adds to it on the host."""
START_S = 300.0
"""Ray, the libraries and the model, from a slow file system."""
LOAD_S = 60.0
"""The model once more, for another setting of the engine: from the system's file cache."""
LEAST_S = 600.0
MARGIN = 1.5
MEMORY_GROWTH, TIME_GROWTH = 1.5, 2.0
"""How much more the second attempt gets than the first, and so on."""
SITE = ("slurm_partition", "constraint", "slurm_extra", "max_runtime")
"""`default-resources` of the Slurm profile that count here."""

MEETINGS = "running"
"""Folder of a campaign in which the nodes of one job find each other."""

_SHARDS = """
SELECT shard, list(cell ORDER BY cell), max(tokens) FROM (
  SELECT shard, min(cell) AS cell,
    max(coalesce(batch_size, 1) * (coalesce(context_tokens, 0) + coalesce(output_tokens, 0))) AS tokens
  FROM planned WHERE status IS NULL OR shard NOT IN (SELECT shard FROM planned WHERE status IS NULL)
  GROUP BY shard, cell::JSON->'engine')
GROUP BY shard
"""
"""Of each shard, a cell of every setting of its engine, and tokens of the largest; of cells that run, if any does."""

Resource = int | str | None
Catalogs = tuple[Models, Mapping[str, Device]]


@dataclass(frozen=True)
class Need:
    """Of one job. `gpus` and `memory_bytes`: on each node. `runtime_s` None: nobody asks."""

    device: Device
    workers: int
    nodes: int
    cpus: int
    gpus: int
    memory_bytes: float
    runtime_s: float | None = None

    def resources(self, attempt: int, site: Mapping[str, str]) -> dict[str, Resource]:
        """In the words of Snakemake's Slurm plugin; None: left out. `site`: what the profile says for all jobs."""
        place, kind = self.device.slurm, self.device.slurm.gpu_model
        partition = place.partition or site.get("slurm_partition")
        said: dict[str, Resource] = {
            "cpus_per_task": self.cpus,
            "mem_mb": math.ceil(self.memory_bytes * MEMORY_GROWTH ** (attempt - 1) / 1e6),
            "runtime": self._minutes(attempt, site, partition),
            "nodes": self.nodes,
            "slurm_partition": partition,
            "constraint": place.constraint or site.get("constraint"),
            "gpu": self.gpus or None,
            "gpu_model": kind if self.gpus else None,
            "mpi": None,
            "tasks": None,
            "slurm_extra": site.get("slurm_extra"),
        }
        if self.nodes > 1:  # `mpi`: the plugin starts no step of its own, `launcher` does, one task a node
            gpus = f" --gpus-per-node={f'{kind}:' if kind else ''}{self.gpus}" if self.gpus else ""
            extra = " ".join(filter(None, (site.get("slurm_extra"), f"--ntasks-per-node=1{gpus}")))
            said |= {"mpi": "srun", "tasks": self.nodes, "gpu": None, "gpu_model": None, "slurm_extra": extra}
        return said

    def _minutes(self, attempt: int, site: Mapping[str, str], partition: str | None) -> int | None:
        """As much as it needs, but not more than anybody allows: what is cut off goes on in the next attempt."""
        if self.runtime_s is None:
            return None
        wanted = math.ceil(self.runtime_s * TIME_GROWTH ** (attempt - 1) / 60)
        return min(wanted, int(site.get("max_runtime") or wanted), longest_minutes(partition) or wanted)

    @property
    def launcher(self) -> str:
        """What starts a command on every node of a job of several."""
        gpus = f" --gpus-per-node={self.gpus}" if self.gpus else ""
        step = f"--nodes={self.nodes} --ntasks={self.nodes} --ntasks-per-node=1 --cpus-per-task={self.cpus}{gpus}"
        return f"srun {step} --cpu-bind=none --kill-on-bad-exit=1"


NOTHING = Need(Device("", "cpu"), workers=1, nodes=1, cpus=1, gpus=0, memory_bytes=0.0)


@dataclass
class Needs:
    """Of every shard of a campaign, worked out when first asked for: what needs no job costs nothing.

    site: see `SITE`; empty where no cluster will read it. is_main: False in a job, which asks of its own shard alone.
    """

    index: PlanIndex
    site: Mapping[str, str]
    is_main: bool
    _known: dict[str, Need] = field(default_factory=dict)

    def of(self, shard: str) -> Need:
        """What the job of this shard needs."""
        if not self.site:
            return NOTHING
        if shard not in self._known:
            self._known |= self._work_out(None if self.is_main else shard)
        return self._known[shard]

    def resources(self) -> dict[str, Callable[..., Resource]]:
        """Functions of (wildcards, attempt), for the rule's `resources:`."""
        return {name: partial(self._resource, name) for name in NOTHING.resources(1, {})}

    def launcher(self, wildcards: Any) -> str:
        """Empty but in a Slurm job of several nodes."""
        is_spanning = self.index.nodes > 1 and not self.is_main and "SLURM_JOB_ID" in os.environ
        if not is_spanning:
            return ""
        need = self.of(wildcards.shard)
        span = [sys.executable, "-m", "kvfrontier.run.span", str(self.index.campaign_dir / MEETINGS), str(need.workers)]
        return f"{need.launcher} {shlex.join(span)}"

    def _resource(self, name: str, wildcards: Any, attempt: int) -> Resource:
        return self.of(wildcards.shard).resources(attempt, self.site)[name]

    def _work_out(self, shard: str | None) -> dict[str, Need]:
        project = Project.find()
        catalogs = load_models(project), load_devices(project)
        columns = [name for name in PLAN.names if name != "parts"]
        plan = read_plan(self.index.campaign_dir, columns, shard)
        seconds = self._open_seconds(plan, project) if self.is_main else {}
        with duckdb.connect() as connection:
            connection.register("planned", plan)
            shards = connection.execute(_SHARDS).fetchall()
        return {shard: self._need(*row, catalogs, seconds.get(shard)) for shard, *row in shards}

    def _need(self, texts: Sequence[str], tokens: int, catalogs: Catalogs, seconds: list[float] | None) -> Need:
        """texts: cells of the shard as JSON, one for each setting of the engine. seconds: see `_open_seconds`."""
        cells = [Cell.from_dict(json.loads(text)) for text in texts]
        engines = [instantiate(cell)[0] for cell in cells]
        cell, engine = cells[0], engines[0]
        models, devices = catalogs
        device, nodes = devices[cell.device], self.index.nodes
        is_measured = engine.source == "measured"
        is_cuda = is_measured and device.kind == "cuda"
        workers = self.index.workers or nodes
        here = math.ceil(workers / nodes)
        each = WORKER_BYTES + is_cuda * CUDA_BYTES
        if is_measured:
            each += _bytes(models, cell.model, tokens)
            each += max(_reserved(models, engine, cell, device) for engine in engines)
        runtime_s = None
        if seconds is not None:
            shared_s, alone_s = seconds
            start_s = START_S + LOAD_S * (len(engines) - 1)
            runtime_s = max(LEAST_S, start_s + MARGIN * (shared_s / workers + alone_s) + self.index.timeout_s)
        return Need(
            device=device,
            workers=workers,
            nodes=nodes,
            cpus=here * (getattr(engine, "threads", None) or 1),
            gpus=here * gpus_per_worker(engine) if is_cuda else 0,
            memory_bytes=DRIVER_BYTES + here * each,
            runtime_s=runtime_s,
        )

    def _open_seconds(self, plan: pa.Table, project: Project) -> dict[str, list[float]]:
        """Shard -> estimated seconds of its cells without a final row: of those that share a device, of the others."""
        stored, _ = stored_rows(self.index.campaign_dir)
        alone = {name for name in plan["workload"].unique().to_pylist() if WORKLOADS.get(name).exclusive}
        found: dict[str, list[float]] = {name: [0.0, 0.0] for name in plan["shard"].unique().to_pylist()}
        columns = (plan[name].to_pylist() for name in ("shard", "fingerprint", "workload"))
        expected = estimates(plan, self.index.campaign_dir, project)
        for shard, fingerprint, workload, estimate in zip(*columns, expected, strict=True):
            row = stored.get(fingerprint)
            if row is None or not row.is_final(self.index.max_attempts):
                found[shard][workload in alone] += estimate.seconds
        return found


def site_of(resources: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """What a profile's `default-resources` say for all jobs, as the user wrote it."""
    return {name: str(resource.raw) for name, resource in resources if name in SITE and resource.raw is not None}


def _bytes(models: Models, name: str, tokens: int) -> float:
    """Weights, and keys and values of the largest cell."""
    try:
        model = models[name]
    except (KeyError, KVFrontierError):  # the job itself will say what is wrong with it
        return UNKNOWN_PARAMETERS * ELEMENT_BYTES
    spec = model.spec
    has_cache = None not in (spec.layers, spec.kv_heads, spec.head_dim)
    return _weight_bytes(model) + (tokens * spec.kv_bytes_per_token(ELEMENT_BYTES) if has_cache else 0)


def _reserved(models: Models, engine: Engine, cell: Cell, device: Device) -> int:
    """What the engine takes of the host's memory whatever a cell needs."""
    try:
        return engine.host_bytes(models[cell.model].spec, device)
    except (KeyError, KVFrontierError):  # the job itself will say what is wrong with it
        return 0


def _weight_bytes(model: Model) -> float:
    spec = model.spec
    if spec.parameters:
        return spec.parameters * ELEMENT_BYTES
    if model.source == "folder":
        stored = sum(path.stat().st_size for path in Path(model.location).glob("*.safetensors"))
        return 2 * stored  # of 16 bits each, perhaps
    if None not in (spec.layers, spec.hidden, spec.vocab):
        # Attention about 4, a gated MLP about 8 times hidden x hidden in each layer, and the embeddings.
        return (12 * spec.layers * spec.hidden**2 + 2 * spec.vocab * spec.hidden) * ELEMENT_BYTES
    return UNKNOWN_PARAMETERS * ELEMENT_BYTES
