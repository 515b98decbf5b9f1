"""Anchors against loops over text, logits and accumulated weights."""

from __future__ import annotations

import math
import zlib
from collections import Counter

import numpy as np
import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES
from reference import NaiveLlama
from tiny import exact_llama
from toy_tokenizer import VOCAB, toy_tokenizer

ANCHORS = STRATEGIES.get("anchors")
TEXT = "Room 417 is Anna's; the spare key, no. 23, hangs by the door. Call me when you are there!"
STEPS, TURNS = 14, [-1.0] * 5 + [0.0] * 30 + [1.0] * 20
ORACLE = range(5, 8)


def span(text, at, neighbours):
    """The word around a letter: letters and digits, or others, without white space before any but the first."""
    same = lambda i, j: text[i].isalnum() == text[j].isalnum()  # noqa: E731
    first = last = at
    while first > 0 and text[first] != " " and same(first - 1, first):
        first -= 1
    while last + 1 < len(text) and text[last + 1] != " " and same(last, last + 1):
        last += 1
    return range(max(0, first - neighbours), min(len(text), last + neighbours + 1))


def naive_order(strategy, ids, nats):
    n, counts, order = len(ids), Counter(ids), []
    row, top = zlib.crc32(np.array(ids, dtype="<i8").tobytes()), math.ceil(strategy.top_share * len(ids))
    turn = [TURNS[at] if at < len(TURNS) else 2.0 for at in range(n)]
    by_kind = {
        "sinks": range(4),
        "numerals": [at for at in range(n) if TEXT[at] in "0123456789"],
        "surprisal": sorted(range(1, n), key=lambda at: -nats[at])[:top],
        "rare_tokens": sorted(range(n), key=lambda at: (counts[ids[at]], -ids[at], at))[:top],
        "random": sorted(range(n), key=lambda at: zlib.crc32(f"{strategy.seed} {row} {at}".encode())),
        "boundary": [at for i in range(n) for at in (i, n - 1 - i)],
        "system_prompt": [at for at in range(n) if turn[at] == -1],
        "early_turns": [at for at in range(n) if turn[at] in (0, 1)],
        "oracle_span": ORACLE,
    }
    for kind in strategy.protect:
        for at in by_kind[kind]:
            grows = kind in ("numerals", "surprisal", "rare_tokens", "random")
            order += [at, *(span(TEXT, at, strategy.neighbours) if grows else [])]
    return list(dict.fromkeys(order))


CASES = [
    {},
    {"protect": ("surprisal",), "neighbours": 2, "top_share": 0.1, "anchor_share": 0.5},
    {"protect": ("rare_tokens", "sinks"), "anchor_share": 0.4},
    {"protect": ("random",), "seed": 3, "neighbours": 0},
    {"protect": ("boundary",), "anchor_share": 0.5},
    {"protect": ("system_prompt", "early_turns"), "anchor_share": 0.5},
    {"protect": ("oracle_span",)},
    {"protect": ("oracle_span", "numerals"), "policy": {"name": "h2o", "sinks": 2, "recent_share": 0.25}},
]


CHUNKED = {"prefill": "chunked", "chunk_tokens": 9}


@pytest.mark.parametrize(("case", "session"), [(case, {}) for case in CASES] + [(CASES[0], CHUNKED)], ids=str)
def test_h2o_with_anchors_keeps_what_the_loop_keeps(case, session):
    strategy, tokenizer = ANCHORS(budget=0.3, **case), toy_tokenizer()
    model, policy = exact_llama(vocab=VOCAB), strategy.inner
    prompt = tokenizer(TEXT).input_ids
    generated = tokenizer("It is here: 99").input_ids[:STEPS]
    llama, nats = NaiveLlama(model), [math.inf]
    for token in prompt:
        logits = llama.step(token)
        nats.append(float(-logits.log_softmax(0)[prompt[len(nats)]]) if len(nats) < len(prompt) else math.inf)
    k = math.ceil(0.3 * len(prompt))
    room = min(int(strategy.anchor_share * k), k - policy.sinks - 2)
    anchors = naive_order(strategy, prompt, nats)[:room]
    rest = k - len(anchors)
    recent = max(1, min(int(rest * policy.recent_share), rest - policy.sinks))
    told = {
        "turns": (TURNS + [2.0] * 100)[: len(prompt)],
        "oracle_span": [float(at in ORACLE) for at in range(len(prompt))],
    }
    sequences = TorchSession(model, tokenizer, **session).open(strategy)
    found = sequences.prefill([prompt], reserve_tokens=STEPS, notes=[told])
    for step in range(STEPS + 1):
        torch.testing.assert_close(found[0], logits, atol=1e-5, rtol=1e-5)
        for entries in (entries for heads in llama.cache for entries in heads):
            while len(entries) > k:
                old = [e for e in entries if policy.sinks <= e.position < llama.position - recent]
                entries.remove(min((e for e in old if e.position not in anchors), key=lambda e: e.score))
        kept = llama.positions()
        assert [layer[0].tolist() for layer in sequences.kept_positions()] == kept
        assert all(set(anchors) <= set(head) for heads in kept for head in heads) and anchors
        if step < STEPS:
            found, logits = sequences.decode([generated[step]]), llama.step(generated[step])


def test_surprisal_is_known_of_every_token_but_the_first_and_never_for_more_than_a_chunk(monkeypatch):
    """Unequal rows, more than one chunk, an extension: against logits of one forward over everything."""
    from kvfrontier.engines import _token_notes, _torch_sequences

    monkeypatch.setattr(_torch_sequences, "SURPRISAL_CHUNK", 16)
    widths = []
    note = _token_notes.note_surprisal
    monkeypatch.setattr(
        _torch_sequences,
        "note_surprisal",
        lambda notes, logits, *rest: (widths.append(logits.shape[1]), note(notes, logits, *rest)),
    )
    model, tokenizer = exact_llama(vocab=VOCAB), toy_tokenizer()
    rows = [tokenizer(TEXT).input_ids[:length] for length in (60, 33, 1)]
    turns = [tokenizer("What number?").input_ids[:length] for length in (12, 5, 2)]
    sequences = TorchSession(model, tokenizer).open(ANCHORS(budget=200))
    sequences.prefill(rows)
    sequences.decode([5, 6, 7])
    sequences.extend(turns)
    assert max(widths) == 16
    for row, (prompt, turn) in enumerate(zip(rows, turns, strict=True)):
        tokens = [*prompt, 5 + row, *turn]
        llama = NaiveLlama(model)
        logits = [llama.step(token) for token in tokens]
        nats = [-math.inf] + [float(-logits[at - 1].log_softmax(0)[tokens[at]]) for at in range(1, len(tokens))]
        nats[len(prompt)] = nats[len(prompt) + 1] = -math.inf  # a generated token, and the first of a turn
        assert sequences.cache.notes[row]["surprisal"] == pytest.approx(nats, abs=1e-9)


@pytest.mark.parametrize(
    "policy", ["h2o", "snapkv", "ada_kv", "pyramid_kv", "tova", "recent", "h2o_stream(chunk_tokens=20)"]
)
def test_in_a_stack_as_alone(policy):
    kinds = ("sinks", "numerals")
    alone = ANCHORS(policy=policy, protect=kinds, budget=0.3)
    stack = STRATEGIES.get("stack")(
        evict={"name": "anchors", "policy": policy, "protect": kinds}, store="int8", budget=0.3
    )
    assert stack.evict.startswith("anchors(") and STRATEGIES.get("stack")(evict=stack.evict, budget=0.3) == stack
    assert set(stack.made_of()) == {"anchors", *alone.made_of(), "int8"}
    prompt, kept = toy_tokenizer()(TEXT).input_ids, []
    for strategy in (alone, stack):
        sequences = TorchSession(exact_llama(vocab=VOCAB), toy_tokenizer()).open(strategy)
        sequences.prefill([prompt])
        kept.append(sequences.kept_positions())
    assert all(map(torch.equal, *kept))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"policy": "full"}, "'full' is none"),
        ({"policy": "anchors"}, "'anchors' is none"),
        ({"policy": "stack"}, "'stack' is none"),
        ({"policy": {"name": "h2o", "budget": 0.2}}, "stands beside it"),
        ({"policy": "h2o(budget_ref=total)"}, "budget_ref, which stands beside it"),
        ({"protect": ()}, "at least 1 item"),
        ({"protect": ("sinks", "sinks")}, "each kind once"),
        ({"protect": ("sink",)}, "protect"),
        ({"anchor_share": 1.5}, "anchor_share"),
    ],
)
def test_what_cannot_be_is_refused(params, message):
    with pytest.raises(ValueError, match=message):
        ANCHORS(**params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"policy": "h2o_stream"}, "surprisal is not known yet"),
        ({"policy": "streaming_llm(positions=rolled)"}, "leave gaps"),
    ],
)
def test_what_would_be_wrong_is_unsupported(params, message):
    with pytest.raises(Unsupported, match=message):
        ANCHORS(**params).check(None)


def test_a_session_that_lacks_what_is_wanted_says_so():
    with pytest.raises(Unsupported, match="read from a tokenizer"):
        TorchSession(exact_llama()).open(ANCHORS())
    sequences = TorchSession(exact_llama()).open(ANCHORS(protect=("oracle_span",)))
    with pytest.raises(Unsupported, match="nobody tells the oracle_span"):
        sequences.prefill([[3, 4, 5]])
