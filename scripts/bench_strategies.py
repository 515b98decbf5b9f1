#!/usr/bin/env python
"""What each strategy costs next to the full cache, as ratios whose two sides are measured in the same run.

f  time of a decode step after a prefill, the strategies taking turns (ratio below 1: faster than the full cache)
g  time of that prefill

Default settings, batch 1, a model of SmolLM2-135M's shape with random weights, float32, one thread. Prints `name=value`
lines; at 8,192 tokens a prefill takes a minute or more, so the whole takes the better part of an hour.
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
SHORT = 64  # tokens to find out whether a strategy runs at all


def runnable(session: TorchSession, names: list[str]) -> list[str]:
    """Those that this engine runs on this model; the others are named with the reason."""
    able = []
    for name in names:
        try:
            strategy = STRATEGIES.get(name)()
            strategy.check(session.spec)
            ENGINES.get("torch")().check(strategy, session.spec)
            session.open(strategy).prefill(prompts(1, SHORT))
        except Unsupported as reason:
            print(f"# {name}: unsupported: {reason}", flush=True)
        else:
            able.append(name)
    return able


def bench(session: TorchSession, names: list[str], tokens: int, steps: int, rounds: int) -> None:
    """(f) and (g) at one context length."""
    prompt = prompts(1, tokens)
    held, prefills, decodes = {}, defaultdict(list), defaultdict(list)
    for _ in range(max(1, rounds // 2)):
        for name in names:
            held.pop(name, None)
            sequences = session.open(STRATEGIES.get(name)())
            start = time.perf_counter()
            sequences.prefill(prompt, reserve_tokens=rounds * (steps + WARM_STEPS))
            prefills[name].append(time.perf_counter() - start)
            held[name] = sequences
    for _ in range(rounds):
        for name, sequences in held.items():
            for _ in range(WARM_STEPS):  # the others' caches have just filled the processor's
                sequences.decode([5])
            start = time.perf_counter()
            for _ in range(steps):
                sequences.decode([5])
            decodes[name].append((time.perf_counter() - start) / steps)
    for what, times in (("decode", decodes), ("prefill", prefills)):
        report(f"{what}_{tokens}_full_s", statistics.median(times["full"]))
        for name in names:
            if name != "full":
                ratios = [ours / full for ours, full in zip(times[name], times["full"], strict=True)]
                report(f"{what}_{tokens}_{name}_ratio", statistics.median(ratios))


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
    names = ["full", *runnable(session, wanted)]
    for tokens in arguments.tokens or ([512] if arguments.quick else [2048, 8192]):
        bench(session, names, tokens, steps=4 if arguments.quick else 12, rounds=2 if arguments.quick else 4)


if __name__ == "__main__":
    main()
