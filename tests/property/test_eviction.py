"""Whatever the settings, the row lengths and the order of turns: what is kept is legal and what must stay, stays."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from tiny import random_prompts, tiny_llama

LAYERS = 2
MODEL = tiny_llama(layers=LAYERS, head_dim=8, hidden=16)
BUDGETS = st.one_of(st.floats(0.05, 1.0), st.integers(8, 60))

h2o = st.builds(
    STRATEGIES.get("h2o"),
    budget=BUDGETS,
    budget_ref=st.sampled_from(["prompt", "total"]),
    recent_share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    sinks=st.integers(0, 4),
    decode_evict=st.sampled_from(["every", "off", "interval"]),
    evict_interval=st.integers(1, 5),
    score_norm=st.sampled_from(["sum", "mean_rows"]),
    decay=st.sampled_from([1.0, 0.9]),
    grace=st.integers(0, 12),
    score_delay=st.sampled_from([0, 3, 50]),
    group_reduce=st.sampled_from(["sum", "mean", "max"]),
)
chunks = st.one_of(
    st.builds(
        STRATEGIES.get(name),
        budget=BUDGETS,
        budget_ref=st.sampled_from(["prompt", "total"]),
        recent_share=st.sampled_from([0.0, 0.5]),
        sinks=st.integers(0, 4),
        grace=st.integers(0, 12),
        decode_evict=st.sampled_from(["every", "off", "interval"]),
        chunk_tokens=st.integers(1, 45),
    )
    for name in ("h2o_stream", "h2o_chunk_local", "h2o_chunk_isolated")
)
heavy = st.builds(STRATEGIES.get("h2o"), heavy_ratio=st.floats(0.05, 0.5))
streaming = st.builds(
    STRATEGIES.get("streaming_llm"),
    budget=BUDGETS,
    budget_ref=st.sampled_from(["prompt", "total"]),
    num_sinks=st.integers(0, 4),
    positions=st.sampled_from(["original", "rolled"]),
)
window = {
    "budget": BUDGETS,
    "budget_ref": st.sampled_from(["prompt", "total"]),
    "window_tokens": st.integers(1, 12),
    "kernel_size": st.sampled_from([1, 3, 7]),
    "pooling": st.sampled_from(["max", "avg"]),
}
windowed = st.one_of(
    st.builds(STRATEGIES.get("snapkv"), **window),
    st.builds(STRATEGIES.get("pyramid_kv"), beta=st.integers(1, 20), **window),
    st.builds(STRATEGIES.get("ada_kv"), floor=st.floats(0, 1), uniform_layers=st.integers(0, 2), **window),
)
tova = st.builds(STRATEGIES.get("tova"), budget=BUDGETS, budget_ref=st.sampled_from(["prompt", "total"]))
controls = st.one_of(
    st.builds(STRATEGIES.get("recent"), budget=BUDGETS),
    st.builds(
        STRATEGIES.get("random"),
        budget=BUDGETS,
        sinks=st.integers(0, 4),
        recent_share=st.sampled_from([0.0, 0.5, 1.0]),
        window_tokens=st.sampled_from([None, 0, 3]),
        decode_evict=st.sampled_from(["every", "off"]),
    ),
)
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=3)


def kept_sets(sequences):
    """[(layer, row, kept positions of each head)]."""
    return [
        (index, row, [[position for position in head if position >= 0] for head in heads])
        for index, layer in enumerate(sequences.kept_positions())
        for row, heads in enumerate(layer.tolist())
    ]


def assert_legal(sequences, strategy):
    cache = sequences.cache
    totals = [0] * len(sequences.seen_tokens)
    for _, row, heads in kept_sets(sequences):
        seen = sequences.seen_tokens[row]
        read = seen if strategy.budget_ref == "total" else cache.read_tokens[row]
        sinks, totals[row] = strategy.sink_tokens(), totals[row] + sum(map(len, heads))
        for kept in heads:
            assert kept == sorted(set(kept)) and kept[0] >= 0 and kept[-1] == seen - 1
            assert kept[: min(sinks, seen)] == list(range(min(sinks, seen)))
            recent = min(strategy.recent_tokens(strategy.token_budget(read)), seen, len(kept))
            assert kept[-recent:] == list(range(seen - recent, seen)) if recent else True
        assert not strategy.even_heads or len(set(map(len, heads))) == 1
    for seen, total in zip(sequences.seen_tokens, totals, strict=True):
        # The decode steps since the last reading are in `seen` already where the budget refers to all tokens.
        mean = strategy.kept_tokens(seen - cache.decoded_tokens, cache.decoded_tokens)
        assert total <= LAYERS * len(heads) * mean


@settings(max_examples=250, deadline=None)
@given(
    strategy=st.one_of(h2o, heavy, streaming, windowed, tova, controls, chunks), rows=lengths, steps=st.integers(0, 12)
)
def test_one_turn_keeps_exactly_what_the_formula_says(strategy, rows, steps):
    sequences = TorchSession(MODEL).open(strategy)
    sequences.prefill(random_prompts(rows), reserve_tokens=steps)
    capacities = [layer.capacity for layer in sequences.cache.layers]
    for step in range(steps + 1):
        assert_legal(sequences, strategy)
        for layer, row, heads in kept_sets(sequences):
            assert sum(map(len, heads)) == len(heads) * strategy.kept_by_layer(LAYERS, rows[row], step)[layer]
        if step < steps:
            sequences.decode([3 + step] * len(rows))
    now = [layer.capacity for layer in sequences.cache.layers]
    assert now == capacities, "decoding within the reservation never allocates"


@settings(max_examples=160, deadline=None)
@given(
    strategy=st.one_of(h2o, streaming, windowed, tova, controls, chunks),
    rows=lengths,
    turns=st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 99)), max_size=5),
)
def test_many_turns_keep_legal_sets(strategy, rows, turns):
    sequences = TorchSession(MODEL, prefill="chunked", chunk_tokens=9).open(strategy)
    sequences.prefill(random_prompts(rows))
    for is_extension, tokens, seed in turns:
        if is_extension:
            sequences.extend(random_prompts([1 + (tokens + row) % 12 for row in range(len(rows))], seed=seed))
        else:
            for token in range(tokens):
                sequences.decode([3 + token] * len(rows))
        sequences = sequences.fork()
        assert_legal(sequences, strategy)


@given(tokens=st.integers(1, 10_000), percent=st.integers(1, 100))
@example(tokens=100, percent=7)
def test_a_share_of_n_tokens_is_rounded_up_as_decimals_are(tokens, percent):
    strategy = STRATEGIES.get("h2o")(budget=percent / 100)
    assert strategy.kept_tokens(tokens) == min(tokens, max(2, -(-tokens * percent // 100)))


@pytest.mark.parametrize(("tokens", "kept"), [(16, 2), (1, 1), (2, 2), (20, 2), (21, 3)])
def test_a_small_budget_of_a_short_context_keeps_a_recent_and_a_heavy_token(tokens, kept):
    assert STRATEGIES.get("h2o")(budget=0.1).kept_tokens(tokens) == kept
