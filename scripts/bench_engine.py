#!/usr/bin/env python
"""Speed and memory of the torch engine, as ratios whose two sides are measured in the same run.

a  full-cache decode against transformers' generate (goal at 2,048 tokens: 1.2 times as fast)
b  exact H2O prefill against the full cache's (goal: at most 1.4 times the time and 1.05 times the peak memory)
c  decode at 8,192 tokens, batch 8, H2O at budget 0.3 against our own full cache (goal: 1.8 times as fast)
l  decode at 256 tokens with the products of few rows that a loaded model has on a CPU, against torch's own (no goal)

A model of SmolLM2-135M's shape with random weights, float32, one thread (l: two threads, too). a to c are about the
cache alone: both sides have torch's own products. Prints `name=value` lines.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import torch
from kvfrontier.engines._memory import PeakMemory
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.models.few_rows import FewRows
from kvfrontier.registry import STRATEGIES
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

VOCAB = 49_152
SETTINGS = {  # strategy, its parameters, the session's prefill
    "full": ("full", {}, "sdpa"),
    "h2o_lse": ("h2o", {"budget": 0.3, "scoring": "lse"}, "sdpa"),
    "h2o_two_pass": ("h2o", {"budget": 0.3, "scoring": "two_pass"}, "sdpa"),
    "h2o_eager": ("h2o", {"budget": 0.3, "scoring": "eager"}, "eager"),
}


def model_135m() -> PreTrainedModel:
    """Random weights in the shape of SmolLM2-135M."""
    config = LlamaConfig(
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        hidden_size=576,
        intermediate_size=1536,
        vocab_size=VOCAB,
        max_position_embeddings=16_384,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None
    return model


def prompts(batch: int, tokens: int) -> list[list[int]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(3, VOCAB, (batch, tokens), generator=generator).tolist()


def report(name: str, value: float) -> None:
    """One figure."""
    print(f"{name}={value:.4g}", flush=True)


class Clock(BaseStreamer):
    """Times of the tokens that `generate` yields; the first call is the prompt itself."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """A step ended."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to do."""


def bench_decode(model: PreTrainedModel, tokens: int, steps: int, rounds: int) -> None:
    """(a) Seconds a decode step, the two sides taking turns."""
    prompt = prompts(1, tokens)
    ids = torch.tensor(prompt)
    ours, theirs = [], []
    for _ in range(rounds):
        session = TorchSession(model)
        times = session.generate(STRATEGIES.get("full")(), prompt, steps + 1).token_times_s[0]
        ours.append((times[-1] - times[0]) / steps)
        session.model.set_attn_implementation("sdpa")
        clock = Clock()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=steps + 1,
            do_sample=False,
            streamer=clock,
            pad_token_id=0,
        )
        theirs.append((clock.times[-1] - clock.times[1]) / steps)
    report(f"decode_{tokens}_ours_s", statistics.median(ours))
    report(f"decode_{tokens}_generate_s", statistics.median(theirs))
    report(f"decode_{tokens}_speedup", statistics.median(b / a for a, b in zip(ours, theirs, strict=True)))


def prefill(model: PreTrainedModel, setting: str, tokens: int) -> float:
    """Seconds of one prefill."""
    name, parameters, mode = SETTINGS[setting]
    sequences = TorchSession(model, prefill=mode).open(STRATEGIES.get(name)(**parameters))
    start = time.perf_counter()
    sequences.prefill(prompts(1, tokens), reserve_tokens=128)
    return time.perf_counter() - start


def bench_prefill(model: PreTrainedModel, tokens: int, settings: list[str], rounds: int) -> None:
    """(b) Prefill times, taking turns in one process; peaks of the process, each in a fresh one."""
    times = {setting: [] for setting in settings}
    for _ in range(rounds):
        for setting in settings:
            times[setting].append(prefill(model, setting, tokens))
    peaks = {setting: peak_of_fresh_process(setting, tokens) for setting in settings}
    for setting in settings:
        report(f"prefill_{tokens}_{setting}_s", statistics.median(times[setting]))
        report(f"prefill_{tokens}_{setting}_peak_bytes", peaks[setting])
        if setting != "full":
            ratios = [b / a for a, b in zip(times["full"], times[setting], strict=True)]
            report(f"prefill_{tokens}_{setting}_time_ratio", statistics.median(ratios))
            report(f"prefill_{tokens}_{setting}_peak_ratio", peaks[setting] / peaks["full"])


def peak_of_fresh_process(setting: str, tokens: int) -> float:
    """Peak resident bytes of one prefill in a process of its own."""
    command = [sys.executable, __file__, "--peak", setting, str(tokens)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_peak(setting: str, tokens: int) -> None:
    """What the fresh process does."""
    model = model_135m()
    peak = PeakMemory(model.device)
    peak.reset()
    prefill(model, setting, tokens)
    print(next(size for metric, _, size in peak.readings("prefill") if metric == "process_peak_bytes"))


def filled(model: PreTrainedModel, setting: str, tokens: int, batch: int, steps: int):
    """A batch whose cache holds random keys and values, as after a prefill of `tokens`."""
    name, parameters, mode = SETTINGS[setting]
    strategy = STRATEGIES.get(name)(**parameters)
    sequences = TorchSession(model, prefill=mode).open(strategy)
    cache = sequences.cache
    cache.seen_tokens, cache.read_tokens = [tokens] * batch, [tokens] * batch
    cache.plan_capacity(tokens, steps)
    kept = strategy.kept_tokens(tokens)
    positions = torch.arange(tokens - kept, tokens).expand(batch, kept)
    for layer in cache.layers:
        keys = torch.randn(batch, 3, kept, 64)
        layer.append(keys, keys.flip(2), positions, [kept] * batch)
        layer.auxiliary("mass")[:, :, :kept] = torch.rand(batch, 3, kept)
    return sequences


def bench_budget(model: PreTrainedModel, tokens: int, batch: int, steps: int, rounds: int) -> None:
    """(c) Seconds a decode step over a directly filled cache, taking turns."""
    sides = {setting: filled(model, setting, tokens, batch, steps * rounds + rounds) for setting in ("full", "h2o_lse")}
    times = {setting: [] for setting in sides}
    for _ in range(rounds):
        for setting, sequences in sides.items():
            sequences.decode([5] * batch)  # the other side's cache has just filled the processor's
            start = time.perf_counter()
            for _ in range(steps):
                sequences.decode([5] * batch)
            times[setting].append((time.perf_counter() - start) / steps)
    for setting, values in times.items():
        report(f"decode_{tokens}_batch{batch}_{setting}_s", statistics.median(values))
    ratios = [a / b for a, b in zip(times["full"], times["h2o_lse"], strict=True)]
    report(f"decode_{tokens}_batch{batch}_h2o_speedup", statistics.median(ratios))


def bench_rows(model: PreTrainedModel, steps: int, rounds: int) -> None:
    """(l) Seconds a decode step, the two sides taking turns with the same cache."""
    layers = [module for module in model.modules() if type(module) is torch.nn.Linear]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for batch in (1, 2, 3, 4, 8):
            times: dict[type, list[float]] = {torch.nn.Linear: [], FewRows: []}
            sequences = filled(model, "full", 256, batch, (steps + 1) * rounds * len(times))
            for _ in range(rounds):
                for kind, taken in times.items():
                    for layer in layers:
                        layer.__class__ = kind
                    sequences.decode([5] * batch)
                    start = time.perf_counter()
                    for _ in range(steps):
                        sequences.decode([5] * batch)
                    taken.append((time.perf_counter() - start) / steps)
            ratios = [few / plain for plain, few in zip(*times.values(), strict=True)]
            report(f"rows_threads{threads}_batch{batch}_time_ratio", statistics.median(ratios))
    torch.set_num_threads(1)
    for layer in layers:
        layer.__class__ = torch.nn.Linear


def main() -> None:
    """Parse the command line and run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="short contexts, few rounds: does it run, roughly how fast"
    )
    parser.add_argument("--parts", default="abcl", help="which parts to run (default: all)")
    parser.add_argument("--tokens", type=int, nargs="+", help="context lengths of part b (default: 2048 4096 8192)")
    parser.add_argument("--peak", nargs=2, metavar=("SETTING", "TOKENS"), help="internal: one prefill's peak memory")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        print_peak(arguments.peak[0], int(arguments.peak[1]))
        return
    model = model_135m()
    quick = arguments.quick
    if "a" in arguments.parts:
        for tokens in (512, 2048):
            bench_decode(model, tokens, steps=12 if quick else 40, rounds=3 if quick else 5)
    if "b" in arguments.parts:
        for tokens in arguments.tokens or ((1024, 2048) if quick else (2048, 4096, 8192)):
            settings = [setting for setting in SETTINGS if setting != "h2o_eager" or tokens <= 4096]
            bench_prefill(model, tokens, settings, rounds=2 if quick else 3)
    if "c" in arguments.parts:
        bench_budget(model, 2048 if quick else 8192, batch=8, steps=4 if quick else 10, rounds=3 if quick else 5)
    if "l" in arguments.parts:
        bench_rows(model, steps=4 if quick else 10, rounds=3 if quick else 5)


if __name__ == "__main__":
    main()
