"""Answers that `lm_eval` has generated: where they stop, what they are and fetch under a cache."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES
from kvfrontier.workloads import _lm_eval_model
from kvfrontier.workloads._account import KVAccount
from kvfrontier.workloads._lm_eval_model import Protocol, SessionLM
from lm_eval.api.instance import Instance
from made_up_tasks import measure, real, use_made_up, values
from naive_infinigen import NaiveInfinigen
from reference import NaiveLlama
from tiny import exact_llama, tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer

FULL = STRATEGIES.get("full")()
TEXTS = ("Is a newt an animal, or a word?", "Does an owl sleep by day")
TOKENS = 6  # of each answer
SINKS = 2


def asked(session, strategy, settings, texts=TEXTS, held_back=1, feed="block"):
    """The model that was asked, and its answers to the texts."""
    model = SessionLM(session, strategy, Protocol(False, held_back, "", feed, 2), KVAccount(session))
    requests = [Instance("generate_until", {}, (text, one), 0) for text, one in zip(texts, settings, strict=True)]
    return model, model.generate_until(requests)


def test_answers_that_are_generated_stop_where_the_task_says():
    shared = real()

    def answers(*settings):
        return asked(shared, FULL, settings, ("A long question?", "Another one", "Third"))[1]

    free = answers(*[{"until": [], "max_gen_toks": 9}] * 3)
    ids = shared.tokenizer("Another one").input_ids
    for _ in range(9):
        ids.append(int(tiny_llama(vocab=VOCAB)(torch.tensor([ids])).logits[0, -1].argmax()))
    assert free[1] == shared.tokenizer.decode(ids[11:], skip_special_tokens=True)
    stop = free[0][4]
    stopped = answers({"until": [stop], "max_gen_toks": 9}, {"until": [], "max_gen_toks": 3}, {"until": ["\0\0"]})
    assert stopped[0] == free[0].partition(stop)[0] and free[1].startswith(stopped[1])
    with pytest.raises(Unsupported, match="draws its answers at random"):
        answers(*[{"do_sample": True, "temperature": 1.0}] * 3)


@pytest.fixture
def model():
    return exact_llama(layers=4, kv_heads=2, q_heads=6, vocab=VOCAB)


@pytest.fixture
def as_ids(monkeypatch):
    """Answers are token ids: bytes that are no text all look alike."""
    monkeypatch.setattr(SessionLM, "_text", lambda self, row, stops: row)


def answered(model, strategy, held_back, feed):
    """Answers to TEXTS, what a cell would say of the cache by metric, layer and head, and what was read."""
    settings = [{"until": [], "max_gen_toks": TOKENS}] * len(TEXTS)
    told, answers = asked(TorchSession(model, toy_tokenizer()), strategy, settings, held_back=held_back, feed=feed)
    found = {(one.metric, one.layer, one.head): one.value for one in told.account.measurements()}
    return answers, found, told.reads


def naive_answer(naive, text, held_back, feed, after):
    """Greedy token ids. after: called after each reading and each step, with the number of tokens read (no steps)."""
    context = toy_tokenizer()(text).input_ids
    for token in context[:-held_back]:
        naive.step(token)
    naive.reading, naive.calibrates, read = True, False, len(context) - held_back
    after(read)
    naive.reading = feed == "block"
    for token in context[-held_back:]:
        logits = naive.step(token)
        if feed == "steps":
            after(read)
    if feed == "block":
        after(read := len(context))
    naive.reading, answer = False, [int(logits.argmax())]
    while len(answer) < TOKENS:
        logits = naive.step(answer[-1])
        after(read)
        answer.append(int(logits.argmax()))
    return answer


HELD_BACK = pytest.mark.parametrize(("held_back", "feed"), [(1, "block"), (5, "block"), (5, "steps")])


@HELD_BACK
def test_an_evicting_strategy_answers_as_a_naive_model_without_what_it_evicted(model, as_ids, held_back, feed):
    strategy = STRATEGIES.get("streaming_llm")(budget=0.3, num_sinks=SINKS)
    answers, found, reads = answered(model, strategy, held_back, feed)
    shares = []
    for text, answer in zip(TEXTS, answers, strict=True):
        naive = NaiveLlama(model)

        def evict(tokens, naive=naive):
            recent = math.ceil(0.3 * tokens) - SINKS
            for heads in naive.cache:
                for entries in heads:
                    entries[:] = entries[:SINKS] + entries[max(SINKS, len(entries) - recent) :]

        assert answer == naive_answer(naive, text, held_back, feed, evict)
        read = len(text) - held_back
        assert reads[text].lost == read - math.ceil(0.3 * read)
        shares.append(math.ceil(0.3 * read) / read)
    assert found["achieved_budget", None, None] == pytest.approx(sum(shares) / len(shares))
    assert not any(metric == "fetched_tokens" for metric, _, _ in found)
    assert answers != answered(model, FULL, held_back, feed)[0]


@HELD_BACK
def test_a_fetching_strategy_answers_and_fetches_as_a_naive_model_does(model, as_ids, held_back, feed):
    strategy = STRATEGIES.get("infinigen")(budget=0.3, alpha=2.0)
    answers, found, _ = answered(model, strategy, held_back, feed)
    fetched, available, steps = Counter(), 0, 0
    for text, answer in zip(TEXTS, answers, strict=True):
        naive = NaiveInfinigen(model, strategy)

        def count(_, naive=naive):
            nonlocal available, steps
            if not naive.reading:
                before = naive.position - 1
                steps, available = steps + 1, available + before
                everything = {(layer, head): range(before) for layer in range(4) for head in range(2)}
                fetched.update({place: len(chosen) for place, chosen in (everything | naive.chosen).items()})

        assert answer == naive_answer(naive, text, held_back, feed, count)
    assert steps == len(TEXTS) * (TOKENS - 1 + (held_back if feed == "steps" else 0))
    for (layer, head), chosen in fetched.items():
        assert found["fetched_tokens", layer, head] == pytest.approx(chosen / steps)
    assert found["achieved_budget", None, None] == pytest.approx(sum(fetched.values()) / (8 * available))
    assert found["achieved_budget", None, None] < 0.8
    assert answers != answered(model, FULL, held_back, feed)[0]


def test_a_row_of_gsm8k_says_what_its_answers_fetched(monkeypatch):
    use_made_up(monkeypatch)
    monkeypatch.setattr(_lm_eval_model, "DEFAULT_ANSWER_TOKENS", 4)
    found = measure(real(layers=4), STRATEGIES.get("infinigen")(budget=0.2, alpha=None), task="gsm8k", num_fewshot=1)
    (achieved,) = values(found, "achieved_budget")
    assert achieved == pytest.approx((1 + 1 + 0.2 + 0.2) / 4, abs=0.01) and len(found["fetched_tokens"]) == 4 * 2
