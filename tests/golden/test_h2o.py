"""H2O against a naive float64 loop: kept sets and logits after the prefill and after each decode step."""

from __future__ import annotations

import math

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from reference import NaiveLlama
from tiny import random_prompts, tiny_llama

PROMPT, STEPS = 41, 24


def naive_h2o(model, prompt, generated, kept_after, recent_of, evicts, sinks=0, mean_rows=False):
    """Yield (positions, logits) after the prompt and after each generated token.

    kept_after(steps) is k, recent_of(k) is k_r, evicts(step) says whether that decode step evicts.
    """
    llama = NaiveLlama(model)

    def evict(k):
        seen = llama.position
        for heads in llama.cache:
            for entries in heads:
                while len(entries) > k:
                    old = [e for e in entries if sinks <= e.position < seen - recent_of(k)]
                    rank = [e.score / (seen - e.position if mean_rows else 1) for e in old]
                    least = min(rank)
                    victim = [e for e, r in zip(old, rank, strict=True) if r == least][-1]
                    entries.remove(victim)

    for token in prompt:
        logits = llama.step(token)
    evict(kept_after(0))
    yield llama.positions(), logits
    for step, token in enumerate(generated, start=1):
        logits = llama.step(token)
        if evicts(step):
            evict(kept_after(step))
        yield llama.positions(), logits


def assert_follows(model, params, reference, **session):
    prompt, generated = random_prompts([PROMPT, STEPS], seed=5)
    strategy = STRATEGIES.get("h2o")(**params)
    sequences = TorchSession(model, **session).open(strategy)
    logits = sequences.prefill([prompt], reserve_tokens=STEPS)
    for step, (positions, expected) in enumerate(reference(model, prompt, generated)):
        if step:
            logits = sequences.decode([generated[step - 1]])
        kept = [layer[0].tolist() for layer in sequences.kept_positions()]
        assert kept == positions, f"kept sets differ at step {step}"
        torch.testing.assert_close(logits[0].double(), expected, atol=2e-4, rtol=1e-4)
        assert {len(head) for layer in kept for head in layer} == {strategy.kept_tokens(PROMPT, step)}


def share(k_of_n, **options):
    k = k_of_n
    return lambda model, prompt, generated: naive_h2o(
        model, prompt, generated,
        kept_after=options.get("kept_after", lambda step: k),
        recent_of=options.get("recent_of", lambda k: k // 2),
        evicts=options.get("evicts", lambda step: True),
        sinks=options.get("sinks", 0), mean_rows=options.get("mean_rows", False),
    )  # fmt: skip


K30 = math.ceil(0.3 * PROMPT)
CASES = {
    "every step": ({"budget": 0.3}, share(K30)),
    "no decode eviction": ({"budget": 0.3, "decode_evict": "off"}, share(K30, evicts=lambda step: False)),
    "every fifth step": (
        {"budget": 0.3, "decode_evict": "interval", "evict_interval": 5},
        share(K30, evicts=lambda step: step % 5 == 0),
    ),
    "token count": ({"budget": 20}, share(20)),
    "heavy ratio": ({"heavy_ratio": 0.1}, share(2 * int(0.1 * PROMPT))),
    "share of all tokens": (
        {"budget": 0.3, "budget_ref": "total"},
        share(0, kept_after=lambda step: math.ceil(0.3 * (PROMPT + step) - 1e-9)),
    ),
    "a quarter recent": ({"budget": 0.5, "recent_share": 0.25}, share(21, recent_of=lambda k: 5)),
    "sinks": ({"budget": 0.3, "sinks": 3}, share(K30, sinks=3)),
    "mean over rows": ({"budget": 0.3, "score_norm": "mean_rows"}, share(K30, mean_rows=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_h2o_keeps_what_the_naive_loop_keeps(case):
    params, reference = CASES[case]
    assert_follows(tiny_llama(), params, reference)


@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
@pytest.mark.parametrize("scoring", ["lse", "two_pass", "eager"])
def test_each_scoring_and_head_grouping_follows_the_naive_loop(kv_heads, scoring):
    model = tiny_llama(kv_heads=kv_heads, seed=kv_heads)
    assert_follows(model, {"budget": 0.3, "scoring": scoring}, share(K30))


@pytest.mark.parametrize("session", [{"prefill": "eager"}, {"prefill": "chunked", "chunk_tokens": 7}], ids=str)
def test_each_prefill_mode_follows_the_naive_loop(session):
    assert_follows(tiny_llama(), {"budget": 0.3}, share(K30), **session)
