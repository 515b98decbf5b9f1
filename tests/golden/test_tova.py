"""TOVA against a naive float64 loop: one set a layer, chosen by the newest query at every step."""

from __future__ import annotations

import math

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from reference import NaiveLlama, best
from tiny import random_prompts, tiny_llama

PROMPT, TURN, STEPS = 41, 7, 16


def naive_tova(model, budget, calls):
    """Yield (positions, logits) after each of `calls`: lists of tokens, of which the last query decides."""
    llama, read = NaiveLlama(model), 0
    config = model.config
    group = config.num_attention_heads // config.num_key_value_heads
    for tokens in calls:
        for token in tokens:
            logits = llama.step(token)
        read += len(tokens) if len(tokens) > 1 else 0
        k = budget if isinstance(budget, int) else math.ceil(budget * read - 1e-9)
        for heads in llama.cache:
            columns = list(zip(*heads, strict=True))  # the same token in every KV head
            weights = [sum(weight for entry in column for _, _, weight in entry.rows[-group:]) for column in columns]
            if len(weights) > k:
                kept = [*best(weights[:-1], k - 1), len(weights) - 1]
                for entries in heads:
                    entries[:] = [entries[i] for i in kept]
        yield llama.positions(), logits


@pytest.mark.parametrize("budget", [0.3, 12, 50])
@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
@pytest.mark.parametrize("session", [{}, {"prefill": "chunked", "chunk_tokens": 7}, {"prefill": "eager"}], ids=str)
def test_tova_keeps_what_the_naive_loop_keeps(budget, kv_heads, session):
    model = tiny_llama(kv_heads=kv_heads, seed=kv_heads)
    prompt, generated, turn, rest = random_prompts([PROMPT, STEPS, TURN, 4], seed=5)
    calls = [prompt, *([token] for token in generated), turn, *([token] for token in rest)]
    sequences = TorchSession(model, **session).open(STRATEGIES.get("tova")(budget=budget))
    for step, (positions, logits) in enumerate(naive_tova(model, budget, calls)):
        tokens = calls[step]
        if step == 0:
            found = sequences.prefill([tokens], reserve_tokens=STEPS)
        else:
            found = sequences.extend([tokens]) if len(tokens) > 1 else sequences.decode(tokens)
        kept = [layer[0].tolist() for layer in sequences.kept_positions()]
        assert kept == positions, f"kept sets differ at {step}"
        assert all(head == layer[0] for layer in kept for head in layer), "one set for all heads"
        torch.testing.assert_close(found[0].double(), logits, atol=2e-4, rtol=1e-4)


def test_it_asks_for_the_weights_of_decode_steps_alone_and_for_none_at_budget_one():
    tova = STRATEGIES.get("tova")
    assert tova(budget=0.2).requires() == {"decode_mass"}
    assert tova(budget=1.0).requires() == frozenset()
    seen = []

    class Watched(tova):
        def observe(self, view):
            seen.append((view.phase, view.attention_mass is not None))
            super().observe(view)

    sequences = TorchSession(tiny_llama(layers=1)).open(Watched(budget=0.3))
    sequences.prefill(random_prompts([20]))
    sequences.decode([5])
    sequences.extend(random_prompts([3]))
    assert seen == [("prefill", False), ("decode", True), ("extend", False)]
