"""The plan on disk: made once, read by every job, made again only when something it depends on has changed.

results/<campaign>/plan/cells.parquet holds a row a cell, shards in their order; index.json what jobs ask first.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvfrontier.errors import KVFrontierError, Unavailable, did_you_mean
from kvfrontier.plan.against import to_metadata
from kvfrontier.plan.believed import index_of, is_shard_name, read_plan
from kvfrontier.plan.build import build_plan
from kvfrontier.plan.campaign import load_campaign
from kvfrontier.plan.cell import content_hash
from kvfrontier.plan.code import CodeBase
from kvfrontier.plan.fingerprint import package_version
from kvfrontier.plan.folder import stat_signature
from kvfrontier.plan.planned import Plan, PlannedCell, Shard
from kvfrontier.plan.project import Project, declared_name, is_name
from kvfrontier.plan.table import PLAN, cells_of, plan_batches

FORMAT = 2
"""A plan written in another layout is made again."""

KEY = b"kvfrontier_key"


@dataclass(frozen=True)
class PlanIndex:
    """What is asked of a plan without reading its cells."""

    campaign: str
    campaign_dir: Path
    shards: tuple[Shard, ...]
    models: tuple[str, ...]
    data: tuple[str, ...]
    notes: tuple[str, ...]
    timeout_s: float
    max_attempts: int
    dropped: int = 0
    duplicates: int = 0
    workers: int | None = None
    nodes: int = 1


def prepare(
    project: Project, campaign: str | Path | None = None, before_writing: Callable[[Path], None] = lambda folder: None
) -> PlanIndex:
    """The plan of a campaign, by name or path, up to date on disk. Raises ConfigError, Unavailable.

    before_writing: is given the campaign's folder where the plan must be made again, and may raise to keep the old one.
    """
    path = project.campaign_file(campaign)
    name = declared_name(path)
    if not is_name(name):
        load_campaign(project, path)  # raises, with whatever else is wrong
    campaign_dir = project.campaign_dir(name)
    files = _hash_files(project, path)  # before they are read: what changes meanwhile makes the plan again next time
    stored = _read_index(campaign_dir)
    # Both files must be of one plan: a crash may come between them.
    if stored and _key(files, stored["packages"], stored["folders"]) == stored["key"] == _key_of_cells(campaign_dir):
        return _index(campaign_dir, stored)
    loaded = load_campaign(project, path)
    plan = build_plan(project, loaded)
    locations = (loaded.models[name] for name in plan.models)
    folders = sorted(model.location for model in locations if model.source == "folder")
    before_writing(campaign_dir)
    content = {
        "format": FORMAT,
        "key": _key(files, plan.packages, folders),
        "campaign": plan.campaign,
        "packages": plan.packages,
        "folders": folders,
        "models": plan.models,
        "data": plan.data,
        "notes": plan.notes,
        "timeout_s": plan.timeout_s,
        "max_attempts": plan.max_attempts,
        "dropped": plan.dropped,
        "duplicates": plan.duplicates,
        "workers": plan.workers,
        "nodes": plan.nodes,
        "shards": [asdict(shard) for shard in plan.shards],
    }
    _write(campaign_dir / "plan", plan, content)
    return _index(campaign_dir, content)


def read_index(campaign_dir: Path) -> PlanIndex:
    """The plan that is on disk, whether up to date or not: what a job reads. Raises Unavailable where there is none."""
    stored = _read_index(campaign_dir)
    if not stored:
        raise Unavailable(f"{campaign_dir} holds no plan: run `kvfrontier plan {campaign_dir.name}`")
    return _index(campaign_dir, stored)


def read_shard(campaign_dir: Path, shard: str) -> list[PlannedCell]:
    """The cells of one shard, in order. Raises KVFrontierError for a shard that the plan (no longer) has."""
    table = read_plan(campaign_dir, shard=shard) if is_shard_name(shard) else None
    if not table:
        names = {item["name"] for item in (_read_index(campaign_dir) or {"shards": []})["shards"]}
        hint = did_you_mean(shard, names) or "The plan was made again since."
        raise KVFrontierError(f"the plan in {campaign_dir} has no shard '{shard}'. {hint}")
    try:
        return cells_of(table)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unavailable(f"the plan in {campaign_dir} does not say what the cells of {shard} are: {error}") from error


def read_cells(campaign_dir: Path) -> pa.Table:
    """All planned cells, a row each (columns: `plan.table.PLAN`). Raises Unavailable where there is no plan."""
    return read_plan(campaign_dir)


def _hash_files(project: Project, campaign: Path) -> str:
    """Hash of the bytes of every config and source file a plan depends on."""
    catalogs = (project.root / "config" / f"{name}.yaml" for name in ("config", "models", "devices", "data"))
    config = {project.label(path): _bytes_hash(path) for path in (campaign, *project.campaign_files(), *catalogs)}
    return content_hash([config, {str(path): _bytes_hash(path) for path in CodeBase.installed().files()}])


def _key(files: str, packages: Iterable[str], folders: Iterable[str]) -> str:
    """Hash of everything a plan depends on."""
    versions = {name: package_version(name) for name in packages}
    signatures = {folder: stat_signature(Path(folder)) for folder in folders}
    return content_hash([FORMAT, files, versions, signatures])


def _bytes_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _read_index(campaign_dir: Path) -> dict | None:
    """The stored index; None when there is none that can be read, which only costs making it again."""
    path = campaign_dir / "plan" / "index.json"
    try:
        content = index_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if content and content["format"] == FORMAT else None


def _key_of_cells(campaign_dir: Path) -> str:
    """The key of the plan that cells.parquet belongs to; empty when there is none."""
    try:
        return pq.read_schema(campaign_dir / "plan" / "cells.parquet").metadata[KEY].decode()
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):  # TypeError: it has no metadata
        return ""


def _index(campaign_dir: Path, content: dict) -> PlanIndex:
    names = ("models", "data", "notes")
    plain = {name: content[name] for name in ("campaign", "timeout_s", "max_attempts", "dropped", "duplicates")}
    plain |= {name: content[name] for name in ("workers", "nodes")}
    shards = tuple(Shard(**shard) for shard in content["shards"])
    return PlanIndex(
        campaign_dir=campaign_dir, shards=shards, **plain, **{name: tuple(content[name]) for name in names}
    )


def _write(folder: Path, plan: Plan, content: dict) -> None:
    """Cells first, then the index, each under a temporary name that is renamed. Raises Unavailable for a bad disk."""

    def write_cells(path: Path) -> None:
        schema = PLAN.with_metadata({KEY: content["key"], **to_metadata(plan.against)})
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            for batch in plan_batches(plan):
                writer.write_table(batch)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "cells.parquet", write_cells)
        _replace(folder / "index.json", lambda path: path.write_text(json.dumps(content), encoding="utf-8"))
    except OSError as error:
        advice = "set KVFRONTIER_RESULTS, or `results:` in config/config.yaml, to a folder that can be written"
        raise Unavailable(f"cannot write the plan to {folder}: {error.strerror or error}; {advice}") from error


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
