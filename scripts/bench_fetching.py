#!/usr/bin/env python
"""Where a decode step of InfiniGen spends its time, and what crosses the link: each token anew, or the difference.

i  seconds of a step by part (speculate, gather, copy, wait; compute is the rest), the step with the parts timed against
   the same step untimed, and bytes a step, of `infinigen` by its three overlaps and of `delta_fetch`

On the 135M model of config/models.yaml (`kvfrontier fetch model smollm2-135m`) with generated text: which tokens a step
wants, and so what a difference saves, means nothing on random weights. float32, one thread; on a CPU both memories are
RAM, so a copy costs what memory costs. Prints `name=value` lines.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from bench_engine import report
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.engines.base import Sequences
from kvfrontier.plan.catalog import load_devices, load_models
from kvfrontier.plan.project import Project
from kvfrontier.registry import ENGINES, STRATEGIES
from kvfrontier.sources.text import exact_prompts

SETTINGS = {
    "infinigen_none": ("infinigen", {"overlap": "none"}),
    "infinigen_copy": ("infinigen", {"overlap": "copy"}),
    "infinigen_layer": ("infinigen", {"overlap": "layer"}),
    "delta_fetch": ("delta_fetch", {"overlap": "none"}),
}
BESIDE = {"none": (), "copy": ("copy",), "layer": ("gather", "copy")}
"""By overlap: the parts that the link's own thread does, beside the step."""


def load() -> TorchSession:
    """The session on the real model."""
    project = Project.find()
    return ENGINES.get("torch")().load(load_models(project)["smollm2-135m"], load_devices(project)["cpu"])


class Side:
    """One setting in the middle of an answer."""

    def __init__(self, session: TorchSession, setting: tuple[str, dict], prompt: list[int], budget: float, steps: int):
        name, parameters = setting
        self.overlap = parameters["overlap"]
        self.sequences: Sequences = session.open(STRATEGIES.get(name)(budget=budget, **parameters))
        self._next = self.sequences.prefill([prompt], reserve_tokens=steps).argmax(-1)
        self.times: list[float] = []

    def decode(self, steps: int) -> float:
        """Seconds a step, each with the token that the last one chose."""
        start_s = time.perf_counter()
        for _ in range(steps):
            self._next = self.sequences.decode(self._next).argmax(-1)
        return (time.perf_counter() - start_s) / steps

    def copied_bytes(self) -> int:
        """Over the link so far, all layers."""
        return sum(log.copied_bytes for log in self.sequences.fetched())


def bench(session: TorchSession, tokens: int, budget: float, steps: int, rounds: int) -> None:
    """(i) at one context length."""
    [prompt] = exact_prompts(session.tokenizer, "generated", 1, tokens, 0)
    total = steps * (2 * rounds + 1)
    sides = {name: Side(session, setting, prompt, budget, total) for name, setting in SETTINGS.items()}
    full = session.open(STRATEGIES.get("full")())
    following = full.prefill([prompt], reserve_tokens=total).argmax(-1)
    fulls = []
    for side in sides.values():
        side.decode(steps)  # the first step of `delta_fetch` has nothing yet
    before = {name: side.copied_bytes() for name, side in sides.items()}
    for _ in range(rounds):
        start_s = time.perf_counter()
        for _ in range(steps):
            following = full.decode(following).argmax(-1)
        fulls.append((time.perf_counter() - start_s) / steps)
        for side in sides.values():
            side.times.append(side.decode(steps))
    full_s, plain = statistics.median(fulls), 0.0
    report(f"full_{tokens}_step_s", full_s)
    for name, side in sides.items():
        at = f"{name}_{tokens}"
        copied = (side.copied_bytes() - before[name]) / (rounds * steps)
        timer = side.sequences.time_parts()
        timed_s = statistics.mean(side.decode(steps) for _ in range(rounds))
        parts = {part: seconds / (rounds * steps) for part, seconds in timer.seconds.items()}
        report(f"{at}_step_ratio", statistics.median(side.times) / full_s)
        report(f"{at}_timed_step_ratio", timed_s / full_s)
        for part, seconds in sorted(parts.items()):
            report(f"{at}_{part}_share", seconds / timed_s)
        inside = sum(seconds for part, seconds in parts.items() if part not in BESIDE[side.overlap])
        report(f"{at}_compute_share", 1 - inside / timed_s)
        report(f"{at}_bytes_step", copied)
        plain = plain or copied
        report(f"{at}_bytes_ratio", copied / plain)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="512 tokens, few steps")
    parser.add_argument("--tokens", type=int, nargs="+", help="context lengths (default: 2048 8000)")
    parser.add_argument("--budget", type=float, default=0.2)
    arguments = parser.parse_args()
    session = load()
    torch.set_num_threads(1)
    steps, rounds = (4, 2) if arguments.quick else (12, 4)
    for tokens in arguments.tokens or ([512] if arguments.quick else [2048, 8000]):
        bench(session, tokens, arguments.budget, steps, rounds)


if __name__ == "__main__":
    main()
