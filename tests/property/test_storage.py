"""Whatever the storage, rows and turns: chunks, batches and forks change nothing, and bytes are the formula's."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies._named import build
from tiny import exact_llama, random_prompts

MODEL = exact_llama(layers=1, head_dim=8, hidden=16)

kivi = st.tuples(st.sampled_from([2, 4]), st.sampled_from([2, 3, 4, 8]), st.integers(1, 3)).map(
    lambda of: {"name": "kivi", "bits": of[0], "group_size": of[1], "residual_tokens": of[1] * of[2]}
)
by_vector = st.one_of(
    st.sampled_from(["int8", "fp8(format=e5m2)", "fp8(scale=token_head)"]),
    st.integers(1, 9).map(lambda size: {"name": "int4_group", "group_size": size}),
)
budgets = st.one_of(st.floats(0.1, 1.0), st.integers(8, 30))
anywhere = st.sampled_from(["h2o", "h2o(sinks=2)", "streaming_llm", "streaming_llm(positions=rolled)"])
at_reading = st.just("h2o(decode_evict=off)")


def alone(given):
    return build(given if isinstance(given, str) else as_text(given))


def as_text(given):
    return f"{given['name']}({', '.join(f'{key}={value}' for key, value in given.items() if key != 'name')})"


stacks = st.one_of(
    st.builds(STRATEGIES.get("stack"), evict=anywhere, store=by_vector, budget=budgets),
    st.builds(STRATEGIES.get("stack"), evict=at_reading, store=st.one_of(kivi, by_vector), budget=budgets),
)
storages = st.one_of(kivi.map(alone), by_vector.map(alone), stacks)
turns = st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=4)


def act(sequences, tokens):
    """One turn: tokens by row and column; logits at its end."""
    if len(tokens[0]) > 1:
        return sequences.extend(tokens)
    return sequences.decode([row[0] for row in tokens])


def assert_bytes(sequences, strategy):
    spec, cache = sequences.session.spec, sequences.cache
    form = alone(strategy.store) if hasattr(strategy, "store") else strategy
    counts = [int(count) for layer in cache.layers for count in layer.counts.flatten()]
    held = sum(form.kv_bytes(spec, 8, count) for count in counts) // (spec.layers * spec.kv_heads)
    assert sequences.bytes_by_metric()["kv_device_bytes"] == held


@settings(max_examples=60, deadline=None)
@given(strategy=storages, rows=st.lists(st.integers(1, 30), min_size=1, max_size=3), turns=turns)
def test_chunks_rows_and_forks_change_nothing(strategy, rows, turns):
    prompts = random_prompts(rows, seed=1)
    whole = TorchSession(MODEL).open(strategy)
    parts = TorchSession(MODEL, prefill="chunked", chunk_tokens=5).open(strategy)
    singles = [TorchSession(MODEL).open(strategy) for _ in rows]
    logits = whole.prefill(prompts)
    others = [
        parts.prefill(prompts),
        torch.cat([single.prefill([row]) for single, row in zip(singles, prompts, strict=True)]),
    ]
    for is_extension, tokens in [(False, 0), *turns]:
        for step in range(1 if is_extension else tokens):
            # An extension of one token would be a decode step here, and rows differ in length but for decoding.
            lengths = [2 + (tokens + row) % 9 for row in range(len(rows))] if is_extension else [1] * len(rows)
            new = random_prompts(lengths, seed=step + tokens)
            logits = act(whole, new)
            others = [
                act(parts, new),
                torch.cat([act(single, [row]) for single, row in zip(singles, new, strict=True)]),
            ]
            whole = whole.fork()
        for other in others:
            torch.testing.assert_close(other, logits, atol=1e-5, rtol=1e-5)
        for sequences in (whole, parts, *singles):
            assert_bytes(sequences, strategy)
        assert all(map(torch.equal, parts.kept_positions(), whole.kept_positions()))
