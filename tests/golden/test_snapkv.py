"""SnapKV against a naive float64 loop: kept sets and logits after a prompt, generated tokens and a second turn."""

from __future__ import annotations

import math

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from pydantic import ValidationError
from reference import NaiveLlama, best, window_scores
from tiny import random_prompts, tiny_llama

PROMPT, TURN, STEPS = 61, 9, 5


def compress(llama, k, window, rows, **pooling):
    """Keep each head's window and the k - w best older entries."""
    group = llama.config.num_attention_heads // llama.config.num_key_value_heads
    for heads in llama.cache:
        for entries in heads:
            if len(entries) > k:
                old = entries[:-window]
                chosen = best(window_scores(old, group, rows, **pooling), k - window)
                entries[:] = [old[i] for i in chosen] + entries[-window:]


def naive_snapkv(model, budget, w, prompt, generated, turn, **pooling):
    """Yield (positions, logits) after the prompt, each generated token, and the turn that follows."""
    llama, read = NaiveLlama(model), 0
    for tokens, is_reading in [(prompt, True), *(([token], False) for token in generated), (turn, True)]:
        for token in tokens:
            logits = llama.step(token)
        if is_reading:
            read += len(tokens)
            k = budget if isinstance(budget, int) else math.ceil(budget * read - 1e-9)
            window = min(w, k // 2)
            compress(llama, k, window, rows=min(window, len(tokens)), **pooling)
        yield llama.positions(), logits


CASES = {
    "defaults": ({}, 0.3),
    "window and choice": ({"window_tokens": 6}, 0.3),
    "average": ({"window_tokens": 6, "pooling": "avg", "kernel_size": 5}, 0.3),
    "no pooling": ({"window_tokens": 6, "kernel_size": 1}, 0.5),
    "best head": ({"window_tokens": 6, "group_reduce": "max"}, 0.3),
    "token count": ({"window_tokens": 4}, 20),
    "turn shorter than the window": ({"window_tokens": 12}, 0.5),
    "one query": ({"window_tokens": 1}, 0.2),
}


def assert_follows(model, case, **session):
    fields, budget = CASES[case]
    prompt, generated, turn = random_prompts([PROMPT, STEPS, TURN], seed=5)
    sequences = TorchSession(model, **session).open(STRATEGIES.get("snapkv")(budget=budget, **fields))
    pooling = {"kernel": fields.get("kernel_size", 7), "pooling": fields.get("pooling", "max")}
    pooling["reduce"] = fields.get("group_reduce", "mean")
    expected = naive_snapkv(model, budget, fields.get("window_tokens", 32), prompt, generated, turn, **pooling)
    for step, (positions, logits) in enumerate(expected):
        if step == 0:
            found = sequences.prefill([prompt])
        else:
            found = sequences.extend([turn]) if step > STEPS else sequences.decode([generated[step - 1]])
        assert [layer[0].tolist() for layer in sequences.kept_positions()] == positions, f"kept sets differ at {step}"
        torch.testing.assert_close(found[0].double(), logits, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_snapkv_keeps_what_the_naive_loop_keeps(case):
    assert_follows(tiny_llama(), case)


@pytest.mark.parametrize("kv_heads", [1, 4], ids=["MQA", "MHA"])
@pytest.mark.parametrize("session", [{"prefill": "eager"}, {"prefill": "chunked", "chunk_tokens": 7}], ids=str)
def test_each_head_grouping_and_prefill_mode_follows_the_naive_loop(kv_heads, session):
    assert_follows(tiny_llama(kv_heads=kv_heads, seed=kv_heads), "window and choice", **session)


@pytest.mark.parametrize("chunk_tokens", [1, 2, 5, 8, 40])
def test_a_window_may_lie_across_chunks_that_end_at_different_rows_and_turns(chunk_tokens):
    """Rows end in different chunks, and a turn's rows too; whatever is cut where, the same tokens stay."""
    strategy = STRATEGIES.get("snapkv")(budget=0.4, window_tokens=6)
    prompts, turns = random_prompts([41, 23, 30], seed=1), random_prompts([3, 17, 8], seed=2)
    model = tiny_llama()
    chunked = TorchSession(model, prefill="chunked", chunk_tokens=chunk_tokens).open(strategy)
    chunked.prefill(prompts)
    chunked.extend(turns)
    for row in range(3):
        alone = TorchSession(model).open(strategy)
        alone.prefill([prompts[row]])
        alone.extend([turns[row]])
        for together, single in zip(chunked.kept_positions(), alone.kept_positions(), strict=True):
            assert torch.equal(together[row, :, : single.shape[2]], single[0])
            assert (together[row, :, single.shape[2] :] == -1).all()


def test_queries_are_held_between_chunks_only_and_never_at_budget_one():
    prompts = random_prompts([30, 12])
    for budget, names in ((0.5, {"window_queries", "window_count"}), (1.0, set())):
        strategy = STRATEGIES.get("snapkv")(budget=budget, window_tokens=4)
        session = TorchSession(tiny_llama(layers=1), prefill="chunked", chunk_tokens=8)
        held = []
        sequences = session.open(strategy)
        layer, forward = sequences.cache.layers[0], sequences._forward
        sequences._forward = lambda *call, f=forward, s=layer, h=held: (f(*call), h.append(set(s.extras)))[0]
        sequences.prefill(prompts)
        assert held == [names] * 3 + [set()]
        assert sequences.bytes_by_metric()["kv_aux_bytes"] == layer.positions.nbytes


def test_an_even_kernel_is_refused():
    with pytest.raises(ValidationError, match="odd number"):
        STRATEGIES.get("snapkv")(kernel_size=4)
