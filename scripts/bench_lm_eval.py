#!/usr/bin/env python
"""Documents of lm-eval tasks a second: the workload's full cache against lm-eval's own HFLM, on the same prompts.

j  multiple choice, documents/s of the full cache over HFLM's (goal: 1.5 times as fast, since a context is read once)

Both sides share the packaged model, one thread, and take turns. HFLM is measured at its default of one text a batch and
at `--batch` texts; `_speedup` is over its default, `_speedup_batched` over the better of the two. Prints `name=value`.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time

from kvfrontier.models.loader import ensure
from kvfrontier.plan.catalog import load_data, load_devices, load_models
from kvfrontier.plan.project import Project
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS
from kvfrontier.sources.tasks import DATA
from kvfrontier.sources.wheel import fetch_wheel
from kvfrontier.workloads._account import KVAccount
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM

MODEL = "smollm2-135m"
TASKS = (("hellaswag", 0), ("arc_easy", 0), ("openbookqa", 0), ("arc_easy", 5), ("hellaswag", 2))
"""Multiple choice of four answers: a task and its few-shot examples."""


class Sides:
    """The two ways to ask one loaded model. Each takes the model's attention over and gives it back."""

    def __init__(self, project: Project, batch: int):
        self.model, self.device = load_models(project)[MODEL], load_devices(project)["cpu"]
        self.batch = batch
        self.session = ENGINES.get("torch")().load(self.model, self.device)

    def ours(self, task: str, shots: int, documents: int) -> float:
        """Seconds; tasks are loaded before."""
        asked = self._workload(task, shots, documents)
        asked._loaded(self.session, 0)
        start = time.perf_counter()
        asked._evaluated(self.session, STRATEGIES.get("full")(), 0, KVAccount(self.session))
        return time.perf_counter() - start

    def theirs(self, task: str, shots: int, documents: int, batch: int) -> float:
        """Seconds of HFLM on the same prompts."""
        loaded = self._workload(task, shots, documents)._loaded(self.session, 0)
        own = self.session.model.config._attn_implementation
        self.session.model.set_attn_implementation("sdpa")
        model = HFLM(pretrained=self.session.model, tokenizer=self.session.tokenizer, batch_size=batch)
        loaded.task.set_fewshot_seed(0)
        start = time.perf_counter()
        evaluate(model, {"tasks": {task: loaded.task}}, samples={task: loaded.samples}, bootstrap_iters=0)
        took = time.perf_counter() - start
        self.session.model.set_attn_implementation(own)
        return took

    def _workload(self, task: str, shots: int, documents: int):
        return WORKLOADS.get("lm_eval")(task=task, num_fewshot=shots, documents=documents, side_by_side=self.batch)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 documents and one round: rough figures in two minutes")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="contexts, or HFLM's texts, in one forward pass")
    options = parser.parse_args()
    documents, rounds = (8, 1) if options.quick else (options.documents, options.rounds)
    logging.disable(logging.WARNING)
    project = Project.find()
    data = load_data(project)[DATA]
    ensure(load_models(project)[MODEL])
    fetch_wheel(data.requirement, data.sha256)
    sides = Sides(project, options.batch)
    for task, shots in TASKS:
        times: dict[str, list[float]] = {"ours": [], "hflm": [], "hflm_batched": []}
        for _ in range(rounds):
            times["ours"].append(sides.ours(task, shots, documents))
            times["hflm"].append(sides.theirs(task, shots, documents, 1))
            times["hflm_batched"].append(sides.theirs(task, shots, documents, options.batch))
        report(f"lm_eval_{task}_{shots}shot", documents, times)


def report(name: str, documents: int, times: dict[str, list[float]]) -> None:
    """Rates, and the ratios of rounds."""
    for side, seconds in times.items():
        print(f"{name}_{side}_documents_per_s={documents / statistics.median(seconds):.4g}", flush=True)
    rounds = list(zip(*times.values(), strict=True))
    print(f"{name}_speedup={statistics.median(hflm / ours for ours, hflm, _ in rounds):.4g}", flush=True)
    best = statistics.median(min(hflm, batched) / ours for ours, hflm, batched in rounds)
    print(f"{name}_speedup_batched={best:.4g}", flush=True)


if __name__ == "__main__":
    main()
