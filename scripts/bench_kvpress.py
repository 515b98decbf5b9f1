#!/usr/bin/env python
"""The same SnapKV cell by kvpress and by us, as ratios whose two sides take turns (below 1: ours is faster).

h  prefill with compression (goal: no slower) and a decode step after it (goal: faster)

Each side is a process in its own environment (kvpress's is made by `kvfrontier env make kvpress`), with the same random
weights of SmolLM2-135M's shape, float32, one thread, window 64, kernel 5. Prints `name=value` lines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

from kvfrontier.plan.environment import Environment

SIDES = ("ours", "kvpress")
WARM_STEPS = 2
SETTINGS = {"window_tokens": 64, "kernel_size": 5, "pooling": "avg"}
"""What kvpress does by default, in our words."""


def serve(side: str, budget: float) -> None:
    """Answer each line `[tokens, steps]` of the standard input by `[prefill_s, seconds a decode step]`."""
    import torch
    from bench_engine import model_135m, prompts

    torch.set_num_threads(1)
    open_batch = _kvpress(model_135m(), budget) if side == "kvpress" else _ours(model_135m(), budget)
    for line in sys.stdin:
        tokens, steps = json.loads(line)
        prompt, sequences = prompts(1, tokens), open_batch()
        start_s = time.perf_counter()
        sequences.prefill(prompt, reserve_tokens=steps + WARM_STEPS)
        prefill_s = time.perf_counter() - start_s
        for _ in range(WARM_STEPS):
            sequences.decode([5])
        start_s = time.perf_counter()
        for _ in range(steps):
            sequences.decode([5])
        print(json.dumps([prefill_s, (time.perf_counter() - start_s) / steps]), flush=True)


def _ours(model, budget):
    from kvfrontier.engines._torch_session import TorchSession
    from kvfrontier.registry import STRATEGIES

    session, strategy = TorchSession(model), STRATEGIES.get("snapkv")(**SETTINGS, budget=budget)
    return lambda: session.open(strategy)


def _kvpress(model, budget):
    from kvfrontier.engines._kvpress_session import KVPressSequences, KVPressSession
    from kvfrontier.registry import STRATEGIES

    session, strategy = KVPressSession(model), STRATEGIES.get("kvpress")(press="SnapKVPress", budget=budget)
    return lambda: KVPressSequences(session, strategy, together=True)  # without our record of which tokens are kept


def start(side: str, budget: float) -> subprocess.Popen[str]:
    """The process of one side."""
    environment = Environment("kvpress")
    environment.require()
    python = str(environment.python) if side == "kvpress" else sys.executable
    variables = {**os.environ, **environment.variables(), "OMP_NUM_THREADS": "1"}
    command = [python, __file__, "--serve", side, "--budget", str(budget)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)


def ask(process: subprocess.Popen[str], tokens: int, steps: int) -> list[float]:
    """One turn of a side."""
    process.stdin.write(json.dumps([tokens, steps]) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"one side ended with {process.wait()}")
    return json.loads(line)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="512 tokens, few rounds")
    parser.add_argument("--tokens", type=int, nargs="+", help="context lengths (default: 2048 8192)")
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.budget)
    rounds, steps = (2, 4) if arguments.quick else (5, 12)
    with ExitStack() as ending:
        sides = {side: start(side, arguments.budget) for side in SIDES}
        for process in sides.values():
            ending.callback(process.kill)
        for tokens in arguments.tokens or ([512] if arguments.quick else [2048, 8192]):
            times = {side: [] for side in SIDES}
            for turn in range(rounds + 1):
                for side, process in sides.items():
                    times[side].append(ask(process, tokens, steps))
                    if turn == 0:
                        times[side].clear()  # the first one warms up
            for index, what in enumerate(("prefill", "decode")):
                pairs = zip(times["ours"], times["kvpress"], strict=True)
                ratios = [ours[index] / theirs[index] for ours, theirs in pairs]
                print(
                    f"snapkv_{what}_{tokens}_kvpress_s={statistics.median(row[index] for row in times['kvpress']):.4f}"
                )
                print(f"snapkv_{what}_{tokens}_ratio={statistics.median(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()
