#!/usr/bin/env python
"""What each strategy costs next to the full cache, as ratios whose two sides are measured in the same run.

f  time of a decode step after a prefill, the strategies taking turns (ratio below 1: faster than the full cache)
g  time of that prefill

Default settings, batch 1, a model of SmolLM2-135M's shape with random weights, float32, one thread. Prints `name=value`
lines; at 8,192 tokens a prefill takes most of a minute, so the whole takes about an hour.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict

import torch
from bench_engine import model_135m, prompts, report
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import ENGINES, STRATEGIES

WARM_STEPS = 2
SIDE_BY_SIDE = 3
"""So many strategies' prefills come after one of the full cache, which they are compared with."""
SHORT = 64  # tokens to find out whether a strategy runs at all


def runnable(session: TorchSession, names: list[str]) -> list[str]:
    """Those that this engine runs on this model; the others are named with the reason."""
    able = []
    for name in names:
        try:
            strategy = STRATEGIES.get(name)()
            strategy.check(session.spec)
            ENGINES.get("torch")().check(strategy, session.spec)
            sequences = session.open(strategy)
            sequences.prefill(prompts(1, SHORT), reserve_tokens=1)
            sequences.decode([5])
        except Unsupported as reason:
            print(f"# {name}: unsupported: {reason}", flush=True)
        else:
            able.append(name)
    return able


def bench(session: TorchSession, names: list[str], tokens: int, steps: int, rounds: int) -> None:
    """(f) and (g) at one context length."""
    prompt = prompts(1, tokens)
    held, prefills, decodes = {}, defaultdict(list), defaultdict(list)

    def prefill(name: str) -> float:
        held.pop(name, None)
        sequences = session.open(STRATEGIES.get(name)())
        start = time.perf_counter()
        sequences.prefill(prompt, reserve_tokens=rounds * (steps + WARM_STEPS))
        held[name] = sequences
        return time.perf_counter() - start

    others = [name for name in names if name != "full"]
    for _ in range(max(1, rounds // 2)):
        for number, name in enumerate(others):
            # A round of long prefills takes a quarter of an hour, in which this machine may change its pace.
            if number % SIDE_BY_SIDE == 0:
                prefills["full"].append(prefill("full"))
            prefills[name].append(prefill(name) / prefills["full"][-1])
    for _ in range(rounds):
        for name, sequences in held.items():
            for _ in range(WARM_STEPS):  # the others' caches have just filled the processor's
                sequences.decode([5])
            start = time.perf_counter()
            for _ in range(steps):
                sequences.decode([5])
            decodes[name].append((time.perf_counter() - start) / steps)
    for name in others:
        decodes[name] = [ours / full for ours, full in zip(decodes[name], decodes["full"], strict=True)]
    for what, measured in (("decode", decodes), ("prefill", prefills)):
        report(f"{what}_{tokens}_full_s", statistics.median(measured["full"]))
        for name in others:
            report(f"{what}_{tokens}_{name}_ratio", statistics.median(measured[name]))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="512 tokens, few rounds: does it run, roughly how fast")
    parser.add_argument("--tokens", type=int, nargs="+", help="context lengths (default: 2048 8192)")
    parser.add_argument("--strategies", nargs="+", help="names; default: all. The full cache is always measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    session = TorchSession(model_135m())
    wanted = arguments.strategies or [name for name in STRATEGIES.names() if name != "full"]
    names = ["full", *runnable(session, [name for name in wanted if name != "full"])]
    if len(names) == 1:
        raise SystemExit("no strategy to compare with the full cache")
    for tokens in arguments.tokens or ([512] if arguments.quick else [2048, 8192]):
        bench(session, names, tokens, steps=4 if arguments.quick else 12, rounds=2 if arguments.quick else 4)


if __name__ == "__main__":
    main()
