"""`fidelity` on a session that recomputes everything."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from fake_session import BYTES_PER_TOKEN, FakeSession
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.sources.text import exact_prompts
from kvfrontier.workloads import fidelity
from tiny import tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer

FULL = STRATEGIES.get("full")()
RECENT = STRATEGIES.get("streaming_llm")(budget=0.5, num_sinks=0)
SMALL = {"context_tokens": 24, "continuation_tokens": 5, "documents": 3, "text": "generated", "side_by_side": 2}


def keep_recent(strategy, tokens):
    """Of 24 tokens and what came after: the newest, as many as the formula says."""
    kept = strategy.kept_tokens(24, tokens - 24) if tokens >= 24 else tokens
    return list(range(tokens - kept, tokens))


def session(keeps=keep_recent):
    return FakeSession(tiny_llama(vocab=VOCAB), toy_tokenizer(), keeps)


def measure(session, strategy, **settings):
    found = defaultdict(list)
    for measurement in WORKLOADS.get("fidelity")(**SMALL | settings).run(session, strategy, seed=0):
        found[measurement.metric, measurement.phase].append(measurement)
    return found


def test_the_full_cache_is_its_own_reference():
    found = measure(session(), FULL)
    assert {m.value for m in found["kl_divergence", ""]} == {0.0}
    assert {m.value for m in found["top1_agreement", ""]} == {1.0}
    assert [(m.request, m.turn) for m in found["nll", ""]] == [(row, step) for row in range(3) for step in range(5)]


def test_nll_is_that_of_the_models_own_forward():
    shared = session()
    texts = exact_prompts(shared.tokenizer, "generated", 3, 30, 0)
    with torch.no_grad():
        log_probs = shared.model(torch.tensor(texts)).logits.log_softmax(-1)
    expected = [-float(log_probs[row, 24 + step, texts[row][25 + step]]) for row in range(3) for step in range(5)]
    assert [m.value for m in measure(shared, FULL)["nll", ""]] == pytest.approx(expected, abs=1e-4)


def test_the_ages_of_what_is_kept_are_a_histogram_a_layer():
    def shares(strategy):
        found = measure(session(), strategy)
        return [{m.value for m in found["kept_age_share", f"age={tenth / 10:g}"]} for tenth in range(10)]

    assert shares(RECENT) == [{0.25}] * 4 + [{0.0}] * 6, "the newest 12 of 29"
    assert shares(FULL) == [{3 / 29}] * 9 + [{2 / 29}]


def test_evicting_moves_the_distributions():
    found = measure(session(), RECENT)
    assert min(m.value for m in found["kl_divergence", ""]) > 0
    assert found["achieved_budget", ""][0].value == pytest.approx(12 / 29)
    assert found["kv_device_bytes", "decode"][0].value == 12 * BYTES_PER_TOKEN
    assert found["kv_full_bytes", "decode"][0].value == 29 * BYTES_PER_TOKEN


def test_the_whole_budget_changes_nothing():
    found = measure(session(), STRATEGIES.get("streaming_llm")(budget=1.0))
    assert max(m.value for m in found["kl_divergence", ""]) == pytest.approx(0, abs=1e-6)
    assert {m.value for m in found["top1_agreement", ""]} == {1.0}


def test_the_reference_is_computed_once_a_session():
    shared = session()
    measure(shared, RECENT)
    opened = len(shared.opened)
    measure(shared, RECENT)
    assert shared.opened[opened:] == [RECENT, RECENT]  # two batches of documents, nothing else
    measure(shared, RECENT, documents=2)
    assert FULL in shared.opened[opened + 2 :], "other documents need another reference"


def test_references_give_way_when_they_take_too_much_memory(monkeypatch):
    monkeypatch.setattr(fidelity, "REFERENCES_HELD_BYTES", 1)
    shared = session()
    measure(shared, RECENT, documents=1)
    measure(shared, RECENT, documents=2)
    (held,) = shared.memo["fidelity references"].values()
    assert len(held.log_probs) == 2


def test_a_short_context_states_its_effective_budget():
    def keep(strategy, tokens):
        kept = strategy.kept_tokens(16, tokens - 16) if tokens >= 16 else tokens
        return list(range(tokens - kept, tokens))

    tenth = STRATEGIES.get("streaming_llm")(budget=0.1)
    found = measure(session(keep), tenth, context_tokens=16)
    assert found["achieved_budget", ""][0].value == pytest.approx(tenth.kept_tokens(16) / 21)
    assert {m.value for m in found["kept_tokens", ""]} == {5.0}


def test_a_strategy_that_did_not_act_is_an_error():
    with pytest.raises(KVFrontierError, match=r"streaming_llm keeps 29\.0 tokens"):
        measure(session(lambda strategy, tokens: list(range(tokens))), RECENT)


def test_texts_longer_than_the_model_are_unsupported():
    with pytest.raises(Unsupported, match="= 520 tokens; small has 512 positions"):
        WORKLOADS.get("fidelity")(context_tokens=500, continuation_tokens=20).check(
            ModelSpec("small", max_positions=512)
        )
    with pytest.raises(Unsupported, match="small has 512 positions"):
        WORKLOADS.get("fidelity")(context_tokens=512).check(ModelSpec("small", max_positions=512))
