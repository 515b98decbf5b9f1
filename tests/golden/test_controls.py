"""The controls, `recent` and `random`, against naive loops; that random choices are random and repeatable."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from tiny import random_prompts, tiny_llama

PROMPT, STEPS = 41, 12
MASK = (1 << 64) - 1


def rank(seed, prompt, layer, head, position):
    """The token's random number, by arithmetic on whole numbers."""
    row = zlib.crc32(np.array(prompt, dtype="<i8").tobytes())
    z = (zlib.crc32(f"{seed} {row} {layer} {head}".encode()) << 31) + position
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return (z ^ (z >> 31)) & 0xFFFFFF


@pytest.mark.parametrize(
    ("fields", "sinks", "recent_of"),
    [
        ({}, 0, lambda k: k // 2),
        ({"sinks": 4, "recent_share": 0.25, "seed": 9}, 4, lambda k: k // 4),
        ({"window_tokens": 3}, 0, lambda k: 3),
        ({"recent_share": 0.0, "sinks": 2}, 2, lambda k: 1),
        ({"decode_evict": "off"}, 0, lambda k: k // 2),
    ],
)
def test_random_keeps_what_the_naive_loop_keeps(fields, sinks, recent_of):
    strategy = STRATEGIES.get("random")(budget=0.3, **fields)
    prompt, generated = random_prompts([PROMPT, STEPS], seed=5)
    k = math.ceil(0.3 * PROMPT)
    sequences = TorchSession(tiny_llama()).open(strategy)
    sequences.prefill([prompt], reserve_tokens=STEPS)
    expected = [[list(range(PROMPT)) for _ in range(2)] for _ in range(2)]
    for step in range(STEPS + 1):
        for layer, heads in enumerate(expected):
            for head, kept in enumerate(heads):
                while len(kept) > k and (step == 0 or fields.get("decode_evict") != "off"):
                    old = [p for p in kept if sinks <= p < PROMPT + step - recent_of(k)]
                    kept.remove(min(old, key=lambda p, at=(layer, head): rank(strategy.seed, prompt, *at, p)))
        assert [layer[0].tolist() for layer in sequences.kept_positions()] == expected
        if step < STEPS:
            sequences.decode([generated[step]])
            for kept in (kept for heads in expected for kept in heads):
                kept.append(PROMPT + step)


def kept_sets(seed=0, prompt_seed=0, layers=2):
    sequences = TorchSession(tiny_llama(layers=layers, head_dim=8, hidden=16, q_heads=2)).open(
        STRATEGIES.get("random")(budget=100, seed=seed, window_tokens=1)
    )
    sequences.prefill(random_prompts([1000], seed=prompt_seed))
    return [set(head) for layer in sequences.kept_positions() for head in layer[0].tolist()]


def test_random_choices_are_spread_evenly_and_independent_of_one_another():
    first = kept_sets()
    assert first == kept_sets(), "the same prompt and seed keep the same tokens"
    everything = [*first, *kept_sets(seed=1), *kept_sets(prompt_seed=1)]
    for i, one in enumerate(everything):
        thirds = [len([p for p in one if low <= p < low + 333]) for low in (0, 333, 666)]
        assert all(15 <= count <= 55 for count in thirds)  # 33 expected, standard deviation 4.5
        assert all(len(one & other) <= 30 for other in everything[:i])  # 10 expected, standard deviation 2.8


@pytest.mark.parametrize("budget", [0.3, 7, 100])
def test_recent_keeps_the_newest_tokens(budget):
    sequences = TorchSession(tiny_llama()).open(STRATEGIES.get("recent")(budget=budget))
    sequences.prefill(random_prompts([PROMPT, 5]))
    shares = [math.ceil(0.3 * n) if budget == 0.3 else budget for n in (PROMPT, 5)]
    for step in range(STEPS):
        for layer in sequences.kept_positions():
            for row, (length, k) in enumerate(zip((PROMPT, 5), shares, strict=True)):
                expected = list(range(max(0, length + step - k), length + step))
                assert [[p for p in head if p >= 0] for head in layer[row].tolist()] == [expected] * 2
        sequences.decode([3, 4])


def test_recent_decodes_like_streaming_llm_without_sinks():
    prompts = random_prompts([PROMPT, 20])
    logits = []
    for strategy in (STRATEGIES.get("recent")(), STRATEGIES.get("streaming_llm")(num_sinks=0)):
        sequences = TorchSession(tiny_llama()).open(strategy)
        logits.append(torch.stack([sequences.prefill(prompts), *(sequences.decode([t, t]) for t in (3, 9, 5))]))
    torch.testing.assert_close(logits[0], logits[1], atol=0, rtol=0)
