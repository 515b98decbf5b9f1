"""Anchors inside any policy, over turns: they are kept, the budget is what it was, and the policy's own tokens stay."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from test_eviction import BUDGETS, LAYERS, MODEL, assert_legal, kept_sets, lengths
from tiny import random_prompts
from toy_tokenizer import toy_tokenizer

POLICIES = [
    "h2o", "h2o(sinks=3, recent_share=0.25)", "h2o(decode_evict=interval, evict_interval=3)", "streaming_llm", "recent",
    "random(sinks=2)", "snapkv(window_tokens=5)", "pyramid_kv(window_tokens=4)", "ada_kv(window_tokens=5)", "tova",
    "h2o_stream(chunk_tokens=7)", "h2o_chunk_local(chunk_tokens=9)", "h2o_chunk_isolated(chunk_tokens=11)",
]  # fmt: skip
KINDS = ["sinks", "numerals", "surprisal", "rare_tokens", "random", "boundary", "oracle_span", "early_turns"]


@st.composite
def anchored(draw):
    policy = draw(st.sampled_from(POLICIES))
    kinds = [kind for kind in KINDS if kind != "surprisal" or "chunk_tokens" not in policy]
    return STRATEGIES.get("anchors")(
        policy=policy,
        budget=draw(BUDGETS),
        budget_ref=draw(st.sampled_from(["prompt", "total"])),
        protect=tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True))),
        anchor_share=draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        neighbours=draw(st.integers(0, 2)),
        whole_words=draw(st.booleans()),
    )


def told(rows):
    return [
        {"turns": [at // 4 - 1 for at in range(length)], "oracle_span": [float(at % 5 == 2) for at in range(length)]}
        for length in map(len, rows)
    ]


def session():
    return TorchSession(MODEL, toy_tokenizer(), prefill="chunked", chunk_tokens=9)


@settings(max_examples=100, deadline=None)
@given(strategy=anchored(), rows=lengths, steps=st.integers(0, 9))
def test_the_budget_is_the_policys_and_the_marked_tokens_stay(strategy, rows, steps):
    prompts = random_prompts(rows)
    sequences = session().open(strategy)
    sequences.prefill(prompts, reserve_tokens=steps, notes=told(prompts))
    marked = None
    for step in range(steps + 1):
        assert_legal(sequences, strategy)
        for layer, row, heads in kept_sets(sequences):
            expected = strategy.inner.kept_by_layer(LAYERS, rows[row], step)
            assert strategy.kept_by_layer(LAYERS, rows[row], step) == expected
            assert sum(map(len, heads)) == len(heads) * expected[layer]
        now = marks(sequences)
        assert marked is None or now == marked, "a decode step evicts no anchor and makes none"
        marked = now
        if step < steps:
            sequences.decode([3 + step] * len(rows))
    for (row, layer), heads in marked.items():
        room = strategy.room(strategy.layer_budgets(rows[row], LAYERS)[layer])
        assert all(len(head) <= room for head in heads)
        # Who evicts between chunks has lost, in some heads, what later chunks make room for.
        assert strategy.chunk_tokens is not None or all(head == heads[0] for head in heads)
        if strategy.chunk_tokens is None and {"random", "boundary"} & set(strategy.protect) and layer == 0:
            assert len(heads[0]) == min(room, rows[row])


def marks(sequences):
    """(row, layer) -> the marked positions of each head."""
    found = {}
    for index, layer in enumerate(sequences.cache.layers):
        if "anchors" in layer.aux:
            at, marked = layer.used_positions().tolist(), layer.aux["anchors"][:, :, : layer.slots].tolist()
            for row, heads in enumerate(zip(at, marked, strict=True)):
                found[row, index] = [
                    sorted(position for position, yes in zip(*head, strict=True) if yes and position >= 0)
                    for head in zip(*heads, strict=True)
                ]
    return found


@settings(max_examples=60, deadline=None)
@given(
    strategy=anchored(),
    rows=lengths,
    turns=st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 99)), max_size=4),
)
def test_many_turns_keep_legal_sets(strategy, rows, turns):
    prompts = random_prompts(rows)
    sequences = session().open(strategy)
    sequences.prefill(prompts, notes=told(prompts))
    for is_extension, tokens, seed in turns:
        if is_extension:
            new = random_prompts([1 + (tokens + row) % 12 for row in range(len(rows))], seed=seed)
            sequences.extend(new, notes=told(new) if seed % 2 else ())
        else:
            for token in range(tokens):
                sequences.decode([3 + token] * len(rows))
        sequences = sequences.fork()
        assert_legal(sequences, strategy)
