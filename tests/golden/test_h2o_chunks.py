"""H2O that evicts while it reads, and its two failure modes, against naive float64 loops; what they hold in memory."""

from __future__ import annotations

import math

import pytest
import torch
from kvfrontier.cache.layer import LayerCache
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.engines.simulator import Simulator
from kvfrontier.errors import Unsupported
from kvfrontier.registry import ENGINES, STRATEGIES
from reference import NaiveLlama
from tiny import random_prompts, tiny_llama

PROMPT, STEPS, TURN = 47, 8, 19
VARIANTS = ["h2o_stream", "h2o_chunk_local", "h2o_chunk_isolated"]


class NaiveChunks:
    """Reads in chunks, evicts to the budget of the tokens read so far after each; `name` says what a chunk forgets."""

    def __init__(self, model, name, chunk, k_of):
        self.llama, self.name, self.chunk, self.k_of = NaiveLlama(model), name, chunk, k_of
        self.tokens_read = 0

    def heads(self):
        return [(layer, head) for layer in range(len(self.llama.cache)) for head in range(len(self.llama.cache[0]))]

    def read(self, tokens, is_prompt):
        for start in range(0, len(tokens), self.chunk):
            part = tokens[start : start + self.chunk]
            earlier = {}
            for layer, head in self.heads():
                entries = self.llama.cache[layer][head]
                if self.name == "h2o_chunk_local":
                    for entry in entries:
                        entry.score = 0.0
                if self.name == "h2o_chunk_isolated" and is_prompt:
                    earlier[layer, head], self.llama.cache[layer][head] = entries, []
            for token in part:
                logits = self.llama.step(token)
            for (layer, head), entries in earlier.items():
                self.llama.cache[layer][head] = entries + self.llama.cache[layer][head]
            self.tokens_read += len(part)
            self.evict()
        return logits

    def decode(self, token):
        logits = self.llama.step(token)
        self.evict()
        return logits

    def evict(self):
        k = self.k_of(self.tokens_read)
        for layer, head in self.heads():
            entries = self.llama.cache[layer][head]
            while len(entries) > k:
                old = entries[: len(entries) - k // 2]
                least = min(entry.score for entry in old)
                entries.remove([entry for entry in old if entry.score == least][-1])


def share(tokens):
    return max(2, math.ceil(0.3 * tokens - 1e-9))


RUNS = [(name, chunk) for name in VARIANTS for chunk in (1, 3, 7, 16, 47, 60)]
RUNS.remove(("h2o_chunk_isolated", 1))  # each token gives itself a weight of 1: only rounding would tell them apart
BUDGETS = {"share": (0.3, share), "tokens": (15, lambda tokens: 15)}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(("name", "chunk"), RUNS)
def test_kept_sets_and_logits_follow_the_naive_loop(name, chunk, budget):
    """Chunk 1 of h2o_stream is the greedy algorithm of the paper."""
    model, (given, k_of) = tiny_llama(), BUDGETS[budget]
    prompt, generated, turn = random_prompts([PROMPT, STEPS, TURN], seed=5)
    naive = NaiveChunks(model, name, chunk, k_of)
    sequences = TorchSession(model).open(STRATEGIES.get(name)(budget=given, chunk_tokens=chunk))

    def compare(logits, expected):
        assert [layer[0].tolist() for layer in sequences.kept_positions()] == naive.llama.positions()
        torch.testing.assert_close(logits[0].double(), expected, atol=2e-4, rtol=1e-4)

    compare(sequences.prefill([prompt], reserve_tokens=STEPS), naive.read(prompt, True))
    for token in generated:
        compare(sequences.decode([token]), naive.decode(token))
    compare(sequences.extend([turn]), naive.read(turn, False))
    compare(sequences.decode(turn[:1]), naive.decode(turn[0]))


def kept(name, **params):
    sequences = TorchSession(tiny_llama()).open(STRATEGIES.get(name)(budget=0.3, **params))
    sequences.prefill(random_prompts([PROMPT], seed=5))
    return [layer.tolist() for layer in sequences.kept_positions()]


def test_the_variants_are_four_different_things_and_one_chunk_makes_them_plain_h2o():
    assert all(kept(name, chunk_tokens=PROMPT) == kept("h2o") for name in VARIANTS)
    results = [kept("h2o"), *(kept(name, chunk_tokens=8) for name in VARIANTS)]
    assert all(a != b for i, a in enumerate(results) for b in results[:i])


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("budget", [40, 0.1])
@pytest.mark.parametrize("prefill", ["sdpa", "eager", "chunked"])
def test_never_more_than_the_budget_and_a_chunk_is_held(monkeypatch, name, budget, prefill):
    capacities, reserved = [], []
    allocate, append = LayerCache._allocate, LayerCache.append

    def spy_allocate(layer, keys, values, capacity):
        capacities.append(capacity)
        allocate(layer, keys, values, capacity)

    def spy_append(layer, *args):
        append(layer, *args)
        reserved.append(layer.reserved_bytes())

    monkeypatch.setattr(LayerCache, "_allocate", spy_allocate)
    monkeypatch.setattr(LayerCache, "append", spy_append)
    model = tiny_llama()
    sequences = TorchSession(model, prefill=prefill).open(STRATEGIES.get(name)(budget=budget, chunk_tokens=32))
    sequences.prefill(random_prompts([400]), reserve_tokens=5)
    assert capacities == [40 + 32, 40 + 32, 41, 41], "one allocation a layer, and one of what is left in the end"
    per_slot = sequences.session.spec.kv_bytes_per_token(4) // 2
    assert max(reserved) == (40 + 32) * per_slot
    assert sequences.bytes_by_metric()["kv_reserved_bytes"] == 2 * 41 * per_slot


def test_what_the_last_chunk_did_not_need_is_given_back():
    strategy = STRATEGIES.get("h2o_stream")(budget=0.3, chunk_tokens=10)
    assert strategy.kept_tokens(50) + 1 == strategy.kept_tokens(51), "the last chunk, of one token, evicts nothing"
    sequences = TorchSession(tiny_llama()).open(strategy)
    sequences.prefill(random_prompts([51]), reserve_tokens=5)
    assert [layer.capacity for layer in sequences.cache.layers] == [strategy.peak_tokens(51, 5)] * 2


@pytest.mark.parametrize("name", VARIANTS)
def test_an_engine_without_such_chunks_refuses_when_the_plan_is_made(name):
    strategy, spec = STRATEGIES.get(name)(), TorchSession(tiny_llama()).spec
    with pytest.raises(Unsupported, match="prefill in chunks"):
        Simulator().check(strategy, spec)
    for prefill in ("sdpa", "eager", "chunked"):
        ENGINES.get("torch")(prefill=prefill).check(strategy, spec)


def test_mean_over_rows_takes_the_age_out_of_what_a_stream_keeps():
    """Tokens of early chunks are kept less often than by plain sums."""

    def mean_position(norm):
        positions = torch.tensor(kept("h2o_stream", chunk_tokens=8, score_norm=norm))
        return positions[positions >= 0].float().mean()

    assert mean_position("mean_rows") > mean_position("sum")
