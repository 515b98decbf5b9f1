"""StreamingLLM against a naive float64 loop; rolled positions against keys cached unrotated and rotated by index."""

from __future__ import annotations

import math

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES
from reference import NaiveLlama
from tiny import exact_llama, random_prompts, tiny_llama

PROMPT, STEPS = 37, 24


def naive_streaming(model, prompt, generated, k, sinks, rolled):
    """Yield (positions, logits) after the prompt and after each generated token."""
    llama = NaiveLlama(model, rolled=rolled)
    for index, token in enumerate([*prompt, *generated]):
        logits = llama.step(token)
        if index >= len(prompt) - 1:
            for heads in llama.cache:
                for entries in heads:
                    entries[:] = entries[:sinks] + entries[max(sinks, len(entries) - (k - sinks)) :]
            yield llama.positions(), logits


@pytest.mark.parametrize("positions", ["original", "rolled"])
@pytest.mark.parametrize(
    ("budget", "sinks", "layers", "kv_heads"),
    [(0.3, 4, 2, 2), (0.3, 0, 2, 1), (20, 2, 3, 4), (100, 4, 2, 2), (0.3, 4, 1, 2)],
)
def test_streaming_llm_follows_the_naive_loop(positions, budget, sinks, layers, kv_heads):
    model = tiny_llama(layers=layers, kv_heads=kv_heads)
    prompt, generated = random_prompts([PROMPT, STEPS], seed=3)
    k = budget if isinstance(budget, int) else math.ceil(budget * PROMPT)
    strategy = STRATEGIES.get("streaming_llm")(budget=budget, num_sinks=sinks, positions=positions)
    sequences = TorchSession(model).open(strategy)
    logits = sequences.prefill([prompt])
    reference = naive_streaming(model, prompt, generated, k, sinks, positions == "rolled")
    for step, (expected_positions, expected) in enumerate(reference):
        if step:
            logits = sequences.decode([generated[step - 1]])
        kept = [layer[0].tolist() for layer in sequences.kept_positions()]
        assert kept == expected_positions, f"kept sets differ at step {step}"
        torch.testing.assert_close(logits[0].double(), expected, atol=2e-4, rtol=1e-4)
        assert {len(head) for layer in kept for head in layer} == {strategy.kept_tokens(PROMPT, step)}


def test_rolled_positions_stay_exact_when_a_turn_extends_the_batch():
    model = tiny_llama()
    prompt, turn, generated = random_prompts([30, 9, 6], seed=9)
    strategy = STRATEGIES.get("streaming_llm")(budget=12, num_sinks=3, positions="rolled")
    sequences = TorchSession(model).open(strategy)
    sequences.prefill([prompt])
    llama = NaiveLlama(model, rolled=True)
    for token in prompt:
        llama.step(token)
    for tokens in [turn, *([token] for token in generated)]:
        for heads in llama.cache:
            for entries in heads:
                entries[:] = entries[:3] + entries[max(3, len(entries) - 9) :]
        logits = sequences.extend([turn]) if tokens is turn else sequences.decode(tokens)
        for token in tokens:
            expected = llama.step(token)
        torch.testing.assert_close(logits[0].double(), expected, atol=2e-4, rtol=1e-4)


def test_a_row_still_getting_its_sinks_beside_one_that_rolls_gives_what_it_gives_alone():
    model, prompts = exact_llama(), random_prompts([1, 20])
    strategy = STRATEGIES.get("streaming_llm")(budget=8, num_sinks=4, positions="rolled")
    together, alone = (TorchSession(model).open(strategy) for _ in range(2))
    together.prefill(prompts)
    alone.prefill(prompts[:1])
    for token in random_prompts([12], seed=1)[0]:
        logits = together.decode([token, token])
        torch.testing.assert_close(logits[:1], alone.decode([token]), atol=1e-9, rtol=1e-9)


def test_rolled_positions_are_refused_where_the_rotation_is_of_another_kind():
    model = tiny_llama()
    model.model.rotary_emb.rope_type = "dynamic"
    with pytest.raises(Unsupported, match="fixed rotary frequencies"):
        TorchSession(model).open(STRATEGIES.get("streaming_llm")(positions="rolled"))
