"""A project for tests of the plan: its own config files, and plugins (tests/toys) that load nothing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kvfrontier.errors import ConfigError, Problem
from kvfrontier.plan.build import build_plan
from kvfrontier.plan.campaign import Campaign, load_campaign
from kvfrontier.plan.disk import PlanIndex, read_shard
from kvfrontier.plan.planned import Plan, PlannedCell
from kvfrontier.plan.project import Project
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS
from kvfrontier.store.rows import write_row

TOYS = Path(__file__).parent / "toys"

MODELS = """
small: {shape: {layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 64, vocab: 97, max_positions: 2048}}
Qwen/Qwen3-8B: {shape: {layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 64, vocab: 97, max_positions: 2048}}
"""
DEVICES = "cpu: {kind: cpu}\nh100: {kind: cuda, match: H100, memory_bytes: 80e9}\n"
DATA = f"toy_text: {{requirement: toy==1.0, sha256: {'ab' * 32}, size_bytes: 10}}\n"

CAMPAIGN = """
device: cpu
axes:
  model: [small]
  engine: [toy_engine]
  strategy: [toy_full, toy_h2o]
  strategy.budget: [0.1, 0.3]
  workload: [{name: toy_speed, context_tokens: 512}]
"""


@contextmanager
def toy_plugins() -> Iterator[None]:
    """Put tests/toys on the search paths of strategies, engines and workloads."""
    paths = []
    for registry, folder in ((STRATEGIES, "strategies"), (ENGINES, "engines"), (WORKLOADS, "workloads")):
        package = __import__(registry.package, fromlist=["__path__"])
        package.__path__.append(str(TOYS / folder))
        paths.append((package.__path__, str(TOYS / folder)))
    try:
        yield
    finally:
        for path, folder in paths:
            path.remove(folder)


class ToyProject:
    """Writes files under `root`/config and plans what they say."""

    def __init__(self, root: Path):
        self.root = root
        self.write("models.yaml", MODELS)
        self.write("devices.yaml", DEVICES)
        self.write("data.yaml", DATA)

    def write(self, name: str, text: str) -> Path:
        path = self.root / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def campaign_text(self, text: str, name: str = "trial") -> None:
        self.write(f"campaigns/{name}.yaml", text)

    @property
    def project(self) -> Project:
        return Project.at(self.root)

    def campaign(self, text: str = CAMPAIGN) -> Campaign:
        self.campaign_text(text)
        return load_campaign(self.project, "trial")

    def plan(self, text: str = CAMPAIGN, code: Any = None) -> Plan:
        return build_plan(self.project, self.campaign(text), code)

    def problems(self, text: str) -> dict[str, Problem]:
        """Problems of a campaign by key; fails when there are none."""
        try:
            self.plan(text)
        except ConfigError as error:
            return {problem.key: problem for problem in error.problems}
        raise AssertionError("no problem was found")


def labels(plan: Plan) -> list[str]:
    """One short line a cell: strategy, workload, seed."""
    return [f"{item.cell.strategy.label} {item.cell.workload.label} {item.cell.seed}" for item in plan.cells]


def with_axes(**changes: str) -> str:
    """A small campaign with some axes replaced or added (keys with __ for a dot)."""
    axes = {
        "model": "[small]",
        "engine": "[toy_engine]",
        "strategy": "[toy_full]",
        "workload": "[{name: toy_speed, context_tokens: 512}]",
    }
    axes |= {key.replace("__", "."): value for key, value in changes.items()}
    return "device: cpu\naxes:\n" + "".join(f"  {key}: {value}\n" for key, value in axes.items())


def planned_cells(index: PlanIndex) -> list[PlannedCell]:
    """All cells of a plan on disk, in order."""
    return [cell for shard in index.shards for cell in read_shard(index.campaign_dir, shard.name)]


def store(
    index: PlanIndex, cell: PlannedCell, /, status: str = "ok", attempt: int = 1, minutes: int = 0, **changes: Any
) -> None:
    """Write a row of a planned cell, `minutes` after the first of January; `changes` replace columns."""
    parts = {**cell.parts, **changes.pop("parts", {})}
    row = {
        "cell_id": cell.cell_id,
        "fingerprint": cell.fingerprint,
        "parts": parts,
        "cell": json.dumps(cell.cell.as_dict()),
        "status": status,
        "source": "measured",
        "attempt": attempt,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes),
    }
    write_row(index.campaign_dir, {**row, **changes})
