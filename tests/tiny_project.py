"""A project whose model is a tiny random one in a folder: real engine workers on it, without Ray or Snakemake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kvfrontier.plan.build import build_plan
from kvfrontier.plan.campaign import load_campaign
from kvfrontier.plan.disk import prepare
from kvfrontier.plan.planned import PlannedCell
from kvfrontier.plan.project import Project
from kvfrontier.run.worker import EngineWorker, Report, Task
from kvfrontier.store.rows import cell_file, read_cell_file
from tiny import tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer
from workspace import DEVICE, SHAPE

DEVICES = {"cpu": {"kind": "cpu"}, "gpu": {"kind": "cuda"}, "fake": DEVICE}
SPEED = {"name": "speed", "text": "generated", "context_tokens": 64, "output_tokens": 8, "repeats": 2, "stop_within": 0}


class TinyProject:
    """Models `tiny` (a folder beside the configuration, given relative to it) and `shape` (for the simulator)."""

    def __init__(self, root: Path, max_positions: int = 4096, layers: int = 2):
        self.root = root
        model = tiny_llama(vocab=VOCAB, max_positions=max_positions, layers=layers)
        model.save_pretrained(root / "weights")
        toy_tokenizer().save_pretrained(root / "weights")
        self.write("models.yaml", {"tiny": {"folder": "weights"}, "shape": {"shape": SHAPE}})
        self.write("devices.yaml", DEVICES)

    def write(self, name: str, content: dict) -> Path:
        path = self.root / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    @property
    def project(self) -> Project:
        return Project.at(self.root)

    def cells(self, *workloads: dict, engine: Any = "torch", device: str = "cpu", **axes: Any) -> list[PlannedCell]:
        """The planned cells of a campaign `trial` with these workloads, in their order; its plan is written too."""
        model = "shape" if engine == "simulator" else "tiny"
        common = {"model": [model], "engine": [engine], "strategy": ["full"], "workload": list(workloads)}
        path = self.write("campaigns/trial.yaml", {"device": device, "timeout_s": 120, "axes": {**common, **axes}})
        prepare(self.project, "trial")
        return build_plan(self.project, load_campaign(self.project, path)).cells

    @property
    def results(self) -> Path:
        return self.project.campaign_dir("trial")

    def worker(self) -> EngineWorker:
        return EngineWorker(self.project, self.results, "abcdef01")

    def run(self, worker: EngineWorker, cell: PlannedCell) -> tuple[Report, dict[str, Any]]:
        """Run a cell; what the driver is told, and the stored row with its maps as dicts."""
        report = worker.run(Task(cell, 1), 1)
        row = read_cell_file(cell_file(self.results, cell.fingerprint)).to_pylist()[0]
        return report, {**row, "parts": dict(row["parts"]), "provenance": dict(row["provenance"])}
