"""What must hold for every strategy: a new file under strategies/ is tested here the moment it exists."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from kvfrontier.cache.kv import KVCache
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies.base import Eviction
from reference import masked_forward
from tiny import random_prompts, tiny_llama

LENGTHS, STEPS = [60, 43, 12], 12
CHUNK = 7  # of strategies that define their own: prompts and turns have several, the last ones uneven
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


def has_field(name, wanted):
    return any(field.name == wanted for field in fields(STRATEGIES.get(name)))


def has_budget(name):
    return has_field(name, "budget")


def make(name, budget=0.3, chunk_tokens=CHUNK):
    given = {"budget": budget, "chunk_tokens": chunk_tokens}
    return STRATEGIES.get(name)(**{key: value for key, value in given.items() if has_field(name, key)})


EVERY = pytest.mark.parametrize("name", STRATEGIES.names())
WITH_BUDGET = pytest.mark.parametrize("name", [name for name in STRATEGIES.names() if has_budget(name)])
EVICTING = pytest.mark.parametrize("name", [n for n in STRATEGIES.names() if issubclass(STRATEGIES.get(n), Eviction)])


@pytest.fixture(scope="module")
def model():
    return tiny_llama(layers=3)


def session(model, **options):
    return TorchSession(model, **options)


def run(sequences, prompts, steps=STEPS, seed=11):
    """Logits after the prefill and each step `[steps + 1, batch, vocab]`; rows get the same generated tokens."""
    generated = random_prompts([steps], seed=seed)[0] if steps else []
    logits = [sequences.prefill(prompts, reserve_tokens=steps)]
    logits += [sequences.decode([token] * len(prompts)) for token in generated]
    return torch.stack(logits)


@EVERY
def test_it_generates_exactly_the_tokens_asked_for(model, name):
    prompts = random_prompts(LENGTHS)
    generation = session(model).generate(make(name), prompts, 5)
    assert [len(row) for row in generation.tokens] == [5, 5, 5]
    assert all(row == sorted(row) and row[0] > 0 for row in generation.token_times_s)
    assert generation.seen_tokens == sum(LENGTHS) / 3 + 4
    assert len(generation.kept_tokens) == 3
    assert {metric for metric, phase, _ in generation.memory if phase == "decode"} >= {
        "kv_device_bytes", "kv_host_bytes", "kv_aux_bytes", "kv_reserved_bytes", "kv_formula_bytes", "kv_full_bytes",
    }  # fmt: skip


@WITH_BUDGET
def test_budget_one_equals_the_full_cache(model, name):
    prompts = random_prompts(LENGTHS)
    # Chunks that do not see one another change the output whatever is kept: one chunk is the setting without effect.
    chunk = max(LENGTHS) if STRATEGIES.get(name).isolated_chunks else CHUNK
    full, whole = session(model).open(make("full")), session(model).open(make(name, 1.0, chunk))
    torch.testing.assert_close(run(whole, prompts), run(full, prompts), atol=1e-5, rtol=1e-5)
    turn = random_prompts([7, 3, 5], seed=2)
    torch.testing.assert_close(whole.extend(turn), full.extend(turn), atol=1e-5, rtol=1e-5)
    assert all(map(torch.equal, whole.kept_positions(), full.kept_positions()))


@EVERY
def test_the_rows_of_a_batch_equal_single_runs(model, name):
    prompts = random_prompts(LENGTHS)
    batch = session(model).open(make(name))
    logits = run(batch, prompts)
    for row, prompt in enumerate(prompts):
        single = session(model).open(make(name))
        torch.testing.assert_close(logits[:, row], run(single, [prompt])[:, 0], **TOLERANCE)
        for together, alone in zip(batch.kept_positions(), single.kept_positions(), strict=True):
            assert torch.equal(together[row, :, : alone.shape[2]], alone[0])
            assert (together[row, :, alone.shape[2] :] == -1).all()


@EVERY
def test_kept_positions_are_unique_in_range_and_within_the_formula(model, name):
    strategy = make(name)
    sequences = session(model).open(strategy)
    sequences.prefill(random_prompts(LENGTHS), reserve_tokens=STEPS)
    for step in range(STEPS):
        for layer in sequences.kept_positions():
            for row, length in enumerate(LENGTHS):
                for head in layer[row].tolist():
                    kept = [position for position in head if position >= 0]
                    assert kept == sorted(set(kept))
                    assert kept[-1] < length + step
                    assert len(kept) <= strategy.kept_tokens(length, step)
        sequences.decode([4, 5, 6])


@EVERY
def test_bytes_are_those_of_the_kept_tokens_and_of_the_formula(model, name):
    prompts = random_prompts([50, 50])
    strategy = make(name)
    sequences = session(model).open(strategy)
    run(sequences, prompts)
    kept = sum(int((layer >= 0).sum()) for layer in sequences.kept_positions())
    sizes = sequences.bytes_by_metric()
    spec = sequences.session.spec
    held = sizes["kv_device_bytes"] + sizes["kv_host_bytes"]
    assert held == kept * 2 * spec.head_dim * 4
    assert held == 2 * strategy.kept_tokens(50, STEPS) * spec.kv_bytes_per_token(4)
    layers = sequences.cache.layers
    assert sizes["kv_reserved_bytes"] == sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    assert layers[0].capacity == strategy.peak_tokens(50, STEPS)


@EVERY
@pytest.mark.parametrize("chunk_tokens", [1, 16, 59, 60, 200])
def test_chunked_prefill_equals_the_monolithic_one(model, name, chunk_tokens):
    prompts = random_prompts(LENGTHS)
    whole = session(model).open(make(name))
    parts = session(model, prefill="chunked", chunk_tokens=chunk_tokens).open(make(name))
    torch.testing.assert_close(run(parts, prompts), run(whole, prompts), **TOLERANCE)
    assert all(map(torch.equal, parts.kept_positions(), whole.kept_positions()))
    assert parts.bytes_by_metric() == whole.bytes_by_metric()


@EVERY
def test_own_chunks_are_asked_of_the_engine(name):
    """An engine that reads as it likes would silently measure something else."""
    strategy = make(name)
    assert ("chunks" in strategy.requires()) == (strategy.chunk_tokens is not None)
    assert not strategy.isolated_chunks or strategy.chunk_tokens is not None


@EVERY
def test_eager_prefill_equals_the_fused_one(model, name):
    prompts = random_prompts(LENGTHS)
    fused, eager = session(model).open(make(name)), session(model, prefill="eager").open(make(name))
    torch.testing.assert_close(run(eager, prompts), run(fused, prompts), **TOLERANCE)


@EVERY
def test_a_fork_is_independent(model, name):
    sequences = session(model).open(make(name))
    run(sequences, random_prompts(LENGTHS))
    before = sequences.kept_positions()
    fork = sequences.fork()
    twin = sequences.fork()
    fork.extend(random_prompts([9, 2, 4], seed=1))
    fork.decode([3, 3, 3])
    assert all(map(torch.equal, before, sequences.kept_positions()))
    assert sequences.seen_tokens == [length + STEPS for length in LENGTHS]
    torch.testing.assert_close(sequences.decode([8, 9, 10]), twin.decode([8, 9, 10]), atol=0, rtol=0)


@EVERY
def test_it_runs_again_and_gives_the_same(model, name):
    prompts = random_prompts(LENGTHS)
    first, second = session(model).open(make(name)), session(model).open(make(name))
    torch.testing.assert_close(run(first, prompts), run(second, prompts), atol=0, rtol=0)


def show(mask, kept, new):
    """Let the queries at positions `new` see what each head has kept and, causally, one another."""
    for head, positions in enumerate(kept):
        for query in new:
            mask[0, head, query, [position for position in positions if position >= 0]] = True
            mask[0, head, query, new[0] : query + 1] = True


@EVICTING
@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
def test_decoding_and_further_turns_equal_a_masked_full_cache(monkeypatch, name, kv_heads):
    """Each call's queries see what the strategy had kept before the call, and causally one another."""
    model = tiny_llama(layers=2, kv_heads=kv_heads)
    prompt, first, turn, second = random_prompts([40, 6, 9, 5], seed=7)
    sequences = session(model).open(make(name, budget=0.4))
    total = 40 + 6 + 9 + 5
    masks = [torch.zeros(1, kv_heads, total, total, dtype=torch.bool) for _ in range(2)]
    begin = KVCache.begin

    def note(cache, call):
        isolated = cache.strategy.isolated_chunks and call.phase == "prefill"
        for mask, layer in zip(masks, cache.layers, strict=True):
            kept = [[]] * kv_heads if isolated or layer.keys is None else layer.kept_positions()[0].tolist()
            show(mask, kept, call.positions[0].tolist())
        begin(cache, call)

    monkeypatch.setattr(KVCache, "begin", note)
    logits = {39: sequences.prefill([prompt])[0]}
    at = 40
    for tokens in [*([t] for t in first), turn, *([t] for t in second)]:
        new = list(range(at, at + len(tokens)))
        at += len(tokens)
        if tokens is turn:
            answers = sequences.extend([tokens], all_logits=True)[0]
            logits.update({position: answers[i] for i, position in enumerate(new)})
        else:
            logits[at - 1] = sequences.decode(tokens)[0]
    expected = masked_forward(model, [*prompt, *first, *turn, *second], masks)
    for position, row in logits.items():
        torch.testing.assert_close(row, expected[position], **TOLERANCE)
    assert any((~mask[0, :, -1]).any() for mask in masks), "nothing was evicted: the test shows nothing"
