"""H2O's ways to score: decay, grace, delay, reductions over a group, against the definition row by row in float64."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean

import pytest
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from reference import NaiveLlama
from tiny import random_prompts, tiny_llama

PROMPT, STEPS, BUDGET = 41, 16, 13
REDUCE = {"sum": sum, "mean": fmean, "max": max}


def naive_score(entry, now, decay=1.0, score_delay=0, group_reduce="sum", score_norm="sum"):
    """Sum of all rows that count, each by its age; per query head, then reduced."""
    heads, counted = {}, 0.0
    for head, row, weight in entry.rows:
        if row - entry.position >= score_delay:
            heads[head] = heads.get(head, 0.0) + decay ** (now - row) * weight
            counted += decay ** (now - row) * (head == 0)
    score = REDUCE[group_reduce](heads.values()) if heads else 0.0
    return score / counted if score_norm == "mean_rows" and counted else score


def naive_evict(entries, k, now, grace=0, sinks=0, **rule):
    """Evict the least score of tokens that may go: not recent, seen and scored by enough rows; ties: the youngest."""
    while len(entries) > k:
        ages = [max(k // 2, grace, rule.get("score_delay", 0)), k - sinks]
        old = [e for e in entries if e.position >= sinks and now - e.position >= max(1, min(ages))]
        ranked = [(naive_score(e, now, **rule), -e.position, e) for e in old]
        entries.remove(min(ranked, key=lambda item: item[:2])[2])


CASES = {
    "decay": {"decay": 0.9},
    "decay, mean over rows": {"decay": 0.9, "score_norm": "mean_rows"},
    "grace": {"grace": 9},
    "grace takes the whole budget": {"grace": 30, "sinks": 2},
    "delay": {"score_delay": 5},
    "delay beyond the window": {"score_delay": 9, "score_norm": "mean_rows"},
    "delay beyond the budget": {"score_delay": 20, "score_norm": "mean_rows"},
    "mean of the group": {"group_reduce": "mean"},
    "max of the group": {"group_reduce": "max"},
    "all together": {"group_reduce": "max", "decay": 0.95, "grace": 8, "score_delay": 3, "sinks": 1},
}


def runs(prefill):
    return {"sdpa": {}, "eager": {"prefill": "eager"}, "chunked": {"prefill": "chunked", "chunk_tokens": 7}}[prefill]


@pytest.mark.parametrize("prefill", ["sdpa", "eager", "chunked"])
@pytest.mark.parametrize("case", CASES)
def test_kept_sets_follow_the_definition(case, prefill):
    model, params = tiny_llama(), CASES[case]
    prompt, generated, turn = random_prompts([PROMPT, STEPS, 11], seed=5)
    sequences = TorchSession(model, **runs(prefill)).open(STRATEGIES.get("h2o")(budget=BUDGET, **params))
    llama = NaiveLlama(model)

    def step(tokens, read):
        for token in tokens:
            llama.step(token)
        for entries in (entries for heads in llama.cache for entries in heads):
            naive_evict(entries, BUDGET, llama.position - 1, **params)
        read(tokens)
        assert [layer[0].tolist() for layer in sequences.kept_positions()] == llama.positions()

    step(prompt, lambda tokens: sequences.prefill([tokens]))
    for token in generated:
        step([token], sequences.decode)
    step(turn, lambda tokens: sequences.extend([tokens]))
    step(turn[:1], sequences.decode)


@pytest.mark.parametrize("case", CASES)
def test_rows_of_unequal_length_equal_single_runs(case):
    model, strategy = tiny_llama(), STRATEGIES.get("h2o")(budget=BUDGET, **CASES[case])

    def kept(rows):
        sequences = TorchSession(model, prefill="chunked", chunk_tokens=9).open(strategy)
        sequences.prefill([random_prompts([41, 23, 6], seed=5)[row] for row in rows])
        for token in (3, 4, 5):
            sequences.decode([token] * len(rows))
        sequences.extend([random_prompts([4, 20, 13], seed=6)[row] for row in rows])
        return [layer.tolist() for layer in sequences.kept_positions()]

    together, alone = kept([0, 1, 2]), [kept([row]) for row in range(3)]
    assert [[layer[row] for row in range(3)] for layer in together] == [
        [single[index][0] for single in alone] for index in range(len(together))
    ]


def test_the_cases_differ_from_plain_h2o():
    """A parameter that did nothing would pass above only where it changes nothing."""
    model, (prompt, generated) = tiny_llama(), random_prompts([PROMPT, STEPS], seed=5)

    def kept(params):
        sequences = TorchSession(model).open(STRATEGIES.get("h2o")(budget=BUDGET, **params))
        sequences.prefill([prompt])
        for token in generated:
            sequences.decode([token])
        return [layer.tolist() for layer in sequences.kept_positions()]

    same = [case for case, params in CASES.items() if kept(params) == kept({})]
    assert same == ["mean of the group"], "the mean ranks as the sum does"


def test_after_a_long_prompt_plain_sums_let_hardly_a_generated_token_stay():
    """The freeze effect, and what takes it away."""
    model, (prompt, generated) = tiny_llama(), random_prompts([240, 80], seed=4)

    def generated_share(**params):
        strategy = STRATEGIES.get("h2o")(budget=60, recent_share=0.25, **params)
        sequences = TorchSession(model).open(strategy)
        sequences.prefill([prompt], reserve_tokens=len(generated))
        for token in generated:
            sequences.decode([token])
        heavy = [head[:-15] for layer in sequences.kept_positions() for head in layer[0].tolist()]
        return fmean(position >= len(prompt) for head in heavy for position in head)

    plain = generated_share()
    assert plain < 0.05 < 0.15 < generated_share(decay=0.95)
    assert generated_share(score_norm="mean_rows") > 0.15
    assert generated_share(grace=45) > plain, "what is spared stays for its time"


@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
def test_the_maximum_over_query_heads_is_that_of_their_own_sums(kv_heads):
    model = tiny_llama(layers=1, kv_heads=kv_heads)
    (prompt,) = random_prompts([PROMPT], seed=3)
    sequences = TorchSession(model, prefill="chunked", chunk_tokens=9).open(
        STRATEGIES.get("h2o")(budget=1.0, group_reduce="max")
    )
    sequences.prefill([prompt])
    llama = NaiveLlama(model)
    for token in prompt:
        llama.step(token)
    aux = sequences.cache.layers[0].aux
    assert sorted(aux) == [f"mass{head}" for head in range(4 // kv_heads)]
    for head, entries in enumerate(llama.cache[0]):
        own = [max(aux[name][0, head, slot].item() for name in aux) for slot in range(PROMPT)]
        expected = list(map(partial(naive_score, now=PROMPT - 1, group_reduce="max"), entries))
        assert all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(own, expected, strict=True))


def test_a_decayed_score_does_not_depend_on_the_engines_chunks_for_long_prompts():
    model, prompts = tiny_llama(layers=2), random_prompts([900, 620], seed=8)
    kept = []
    for options in ({}, {"prefill": "chunked", "chunk_tokens": 128}, {"prefill": "chunked", "chunk_tokens": 333}):
        strategy = STRATEGIES.get("h2o")(budget=0.2, decay=0.99, score_delay=10, group_reduce="max")
        sequences = TorchSession(model, **options).open(strategy)
        sequences.prefill(prompts)
        kept.append([layer.tolist() for layer in sequences.kept_positions()])
    assert kept[0] == kept[1] == kept[2]
