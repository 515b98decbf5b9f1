"""What must hold for every strategy: a new file under strategies/ is tested here the moment it exists."""

from __future__ import annotations

import os
from dataclasses import fields

import pytest
import torch
from kvfrontier.cache.kv import KVCache
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies._eviction import Eviction
from reference import masked_forward
from tiny import exact_llama, random_prompts, tiny_llama
from torch_strategies import TORCH_STRATEGIES
from toy_tokenizer import toy_tokenizer

LENGTHS, STEPS = [250, 131, 12], 12  # one row passes 256 tokens while it decodes, one is shorter than any window
CHUNK = 7  # of strategies that define their own: prompts and turns have several, the last ones uneven
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


def has_field(name, wanted):
    return any(field.name == wanted for field in fields(STRATEGIES.get(name)))


def has_budget(name):
    return has_field(name, "budget")


def make(name, budget=0.3, chunk_tokens=CHUNK):
    given = {"budget": budget, "chunk_tokens": chunk_tokens}
    return STRATEGIES.get(name)(**{key: value for key, value in given.items() if has_field(name, key)})


def decodes(name):
    """Whether it reads and decodes; what looks at whole sequences has tests of its own."""
    return "whole_sequence" not in make(name).requires()


NAMES = [name for name in TORCH_STRATEGIES if decodes(name)]
EVERY = pytest.mark.parametrize("name", NAMES)
WITH_BUDGET = pytest.mark.parametrize("name", [name for name in NAMES if has_budget(name)])
EVICTING = pytest.mark.parametrize("name", [n for n in NAMES if issubclass(STRATEGIES.get(n), Eviction)])


@pytest.fixture(scope="module")
def model():
    """float64: a difference in the last bit would now and then flip a code or a rank, and then it shows."""
    return exact_llama(layers=3)


def session(model, **options):
    return TorchSession(model, toy_tokenizer(), **options)


def run(sequences, prompts, steps=STEPS, seed=11):
    """Logits after the prefill and each step `[steps + 1, batch, vocab]`; rows get the same generated tokens."""
    generated = random_prompts([steps], seed=seed)[0] if steps else []
    logits = [sequences.prefill(prompts, reserve_tokens=steps)]
    logits += [sequences.decode([token] * len(prompts)) for token in generated]
    return torch.stack(logits)


def all_settings(name):
    return [make(name), make(name, budget=1.0)] if has_budget(name) else [make(name)]


@EVERY
def test_what_it_says_is_exact_answers_as_the_full_cache(model, name):
    """Readings: what is asked without a decode step. Always: that, and every step."""
    prompts, turn = random_prompts(LENGTHS), random_prompts([6, 6, 6], seed=3)
    full = session(model).open(STRATEGIES.get("full")())
    steps, asked = run(full, prompts, steps=4), full.extend(turn)
    for strategy in all_settings(name):
        if said := strategy.exact():
            read = session(model).open(strategy)
            torch.testing.assert_close(read.prefill(prompts, reserve_tokens=4), steps[0], **TOLERANCE)
            alone = session(model).open(STRATEGIES.get("full")())
            alone.prefill(prompts)
            torch.testing.assert_close(read.extend(turn), alone.extend(turn), **TOLERANCE)
        if said == "always":
            decoded = session(model).open(strategy)
            torch.testing.assert_close(run(decoded, prompts, steps=4), steps, **TOLERANCE)
            torch.testing.assert_close(decoded.extend(turn), asked, **TOLERANCE)


def test_who_says_so():
    said = {name: make(name).exact() for name in NAMES}
    assert {name for name in NAMES if said[name] == "always"} == {"full", "offload", "disk"}
    assert {name for name in NAMES if said[name] == "readings"} == {"infinigen", "delta_fetch"}
    assert make("infinigen", budget=1.0).exact() == "always"


@pytest.mark.parametrize("name", ["infinigen", "delta_fetch"])
def test_steps_that_choose_are_not_called_exact(model, name):
    prompts = random_prompts(LENGTHS)
    full, chosen = (
        run(session(model).open(one), prompts, 4) for one in (STRATEGIES.get("full")(), make(name, budget=0.1))
    )
    assert make(name, budget=0.1).exact() == "readings" and not torch.allclose(full, chosen, atol=1e-3)
    assert STRATEGIES.get(name)(budget=0.1, pool_limit=0.5).exact() == ""


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
    logits = [run(whole, prompts), run(full, prompts)]
    turn = random_prompts([7, 3, 5], seed=2)
    logits = [torch.cat((logits[0], whole.extend(turn)[None])), torch.cat((logits[1], full.extend(turn)[None]))]
    assert all(map(torch.equal, whole.kept_positions(), full.kept_positions()))
    spec = whole.session.spec
    if make(name, 1.0).kv_bytes(spec, 8, 100) == make("full").kv_bytes(spec, 8, 100):
        torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
    else:  # every token is there, in a form of fewer bits: attention of the prefill alone is that of the full cache
        torch.testing.assert_close(logits[0][0], logits[1][0], atol=1e-5, rtol=1e-5)


@EVICTING
@pytest.mark.parametrize("options", [{}, {"prefill": "chunked", "chunk_tokens": 16}], ids=str)
def test_budget_one_asks_for_no_scores_and_holds_nothing_beside_the_cache(model, name, options, monkeypatch):
    def scores(strategy, view):
        raise AssertionError("scores of tokens of which none is evicted")

    monkeypatch.setattr(STRATEGIES.get(name), "scores", scores)
    whole = session(model, **options).open(make(name, budget=1.0))
    run(whole, random_prompts(LENGTHS))
    whole.extend(random_prompts([7, 3, 5], seed=2))
    assert all(layer.extras == {} for layer in whole.cache.layers)


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
        for index, layer in enumerate(sequences.kept_positions()):
            for row, length in enumerate(LENGTHS):
                heads = [[position for position in head if position >= 0] for head in layer[row].tolist()]
                for kept in heads:
                    assert kept == sorted(set(kept))
                    assert kept[-1] < length + step
                ceiling = strategy.kept_by_layer(3, length, step)[index]
                assert sum(map(len, heads)) <= len(heads) * ceiling
                assert not strategy.even_heads or max(map(len, heads)) <= ceiling
        sequences.decode([4, 5, 6])


@EVERY
@pytest.mark.parametrize("budget", [0.05, 0.3, 0.8, 40])
def test_the_layers_keep_together_what_the_formula_says(name, budget):
    strategy = make(name, budget)
    for layers in (1, 2, 5, 30):
        for length in (1, 7, 60, 513):
            for step in (0, 1, 9):
                kept = strategy.kept_by_layer(layers, length, step)
                assert len(kept) == layers and min(kept) >= 1
                assert sum(kept) == layers * strategy.kept_tokens(length, step)
                assert max(kept) <= length + step


@EVERY
def test_bytes_are_those_of_the_tensors_and_of_the_formula(model, name):
    prompts = random_prompts([140, 140])
    strategy = make(name)
    sequences = session(model).open(strategy)
    run(sequences, prompts, steps=0)
    largest = [int(layer.counts.max()) for layer in sequences.cache.layers]
    sequences = session(model).open(strategy)
    run(sequences, prompts)
    kept = sum(int((layer >= 0).sum()) for layer in sequences.kept_positions())
    sizes = sequences.bytes_by_metric()
    spec = sequences.session.spec
    assert kept == 2 * strategy.kept_tokens(140, STEPS) * spec.layers * spec.kv_heads
    held = sizes["kv_device_bytes"] + sizes["kv_host_bytes"] + sizes.get("kv_disk_bytes", 0)
    assert held == 2 * strategy.kv_bytes(spec, 8, 140, STEPS)
    assert held <= sizes["kv_reserved_bytes"]
    layers = sequences.cache.layers
    counted = sizes["kv_reserved_bytes"] + sizes["kv_aux_bytes"]
    assert counted == sum(storages(layers).values())
    growth = strategy.peak_tokens(140, STEPS) - strategy.kept_tokens(140)
    assert [layer.capacity - growth for layer in layers] == largest
    assert not strategy.even_heads or largest == strategy.kept_by_layer(3, 140)


def storages(held):
    """Address -> bytes of all memory behind the tensors in `held`, but for counts and indices (int64); and of files."""
    if isinstance(held, torch.Tensor):
        memory = held.untyped_storage()
        return {} if held.dtype == torch.long or not memory.nbytes() else {memory.data_ptr(): memory.nbytes()}
    if type(held).__module__.startswith("kvfrontier."):
        found = storages(vars(held))
        return found | ({("file", held.fd): os.fstat(held.fd).st_size} if "fd" in vars(held) else {})
    parts = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()
    return {address: size for part in parts for address, size in storages(part).items()}


@EVERY
@pytest.mark.parametrize("chunk_tokens", [1, 16, 249, 250, 400])
def test_chunked_prefill_equals_the_monolithic_one(model, name, chunk_tokens):
    prompts = random_prompts(LENGTHS if chunk_tokens > 1 else [60, 43, 12])
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
            kept = [[]] * kv_heads if isolated or layer.positions is None else layer.kept_positions()[0].tolist()
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
