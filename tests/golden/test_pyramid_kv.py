"""PyramidKV against a naive float64 loop, and the shape of its pyramid."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from reference import NaiveLlama, best, window_scores
from tiny import random_prompts, tiny_llama


def naive_counts(chosen, older, layers, beta):
    """Chosen tokens a layer: a line from 2 c - c // beta down to c // beta, clamped, in whole tokens."""
    last = chosen // beta
    first = 2 * chosen - last
    if first > older:
        first, last = older, 2 * chosen - older
    line = [first - layer * (first - last) / (layers - 1) for layer in range(layers)]
    counts = [int(value + 1e-9) for value in line]
    while sum(counts) < chosen * layers:
        short = [round(value - count, 9) for value, count in zip(line, counts, strict=True)]
        counts[short.index(max(short))] += 1
    return counts


@pytest.mark.parametrize(
    ("tokens", "budget", "window", "beta", "layers"),
    [(61, 20, 4, 20, 5), (61, 20, 4, 2, 3), (61, 0.8, 8, 20, 4), (61, 9, 8, 20, 4), (61, 20, 4, 1, 3)],
)
def test_pyramid_kv_keeps_what_the_naive_loop_keeps(tokens, budget, window, beta, layers):
    model = tiny_llama(layers=layers)
    prompt, generated = random_prompts([tokens, 6], seed=4)
    strategy = STRATEGIES.get("pyramid_kv")(budget=budget, window_tokens=window, beta=beta)
    k = strategy.token_budget(tokens)
    window = min(window, k // 2)
    counts = naive_counts(k - window, tokens - window, layers, beta)
    sequences, llama = TorchSession(model).open(strategy), NaiveLlama(model)
    found = sequences.prefill([prompt], reserve_tokens=len(generated))
    capacities = [layer.capacity for layer in sequences.cache.layers]
    for token in prompt:
        logits = llama.step(token)
    for heads, count in zip(llama.cache, counts, strict=True):
        for entries in heads:
            old = entries[:-window]
            entries[:] = [old[i] for i in best(window_scores(old, 2, window), count)] + entries[-window:]
    for token in [*generated, None]:
        assert [layer[0].tolist() for layer in sequences.kept_positions()] == llama.positions()
        torch.testing.assert_close(found[0].double(), logits, atol=2e-4, rtol=1e-4)
        if token is not None:
            found, logits = sequences.decode([token]), llama.step(token)
    assert capacities == [window + count + len(generated) for count in counts]
    assert capacities == [layer.capacity for layer in sequences.cache.layers], "each layer reserves its own budget"


def test_the_defaults_give_the_papers_pyramid():
    """k 2048 of a long prompt, 32 layers: c 2040, from 3978 down to 102."""
    budgets = STRATEGIES.get("pyramid_kv")(budget=2048).layer_budgets(8000, 32)
    assert budgets[0] == 8 + 2 * 2040 - 102 and budgets[-1] == 8 + 102
    steps = {upper - lower for upper, lower in pairwise(budgets)}
    assert steps <= {125, 126}  # (3978 - 102) / 31 = 125.03
    assert sum(budgets) == 32 * 2048


@given(
    tokens=st.integers(1, 3000),
    budget=st.one_of(st.floats(0.01, 1.0), st.integers(2, 3000)),
    layers=st.integers(1, 80),
    window=st.integers(1, 64),
    beta=st.integers(1, 40),
)
def test_budgets_fall_and_their_mean_is_the_budget(tokens, budget, layers, window, beta):
    strategy = STRATEGIES.get("pyramid_kv")(budget=budget, window_tokens=window, beta=beta)
    budgets = strategy.layer_budgets(tokens, layers)
    k = strategy.token_budget(tokens)
    assert list(budgets) == sorted(budgets, reverse=True)
    assert sum(budgets) == k * layers
    assert budgets[-1] >= min(window, k // 2)
    assert k >= tokens or budgets[0] <= tokens
