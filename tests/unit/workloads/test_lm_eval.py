"""`lm_eval` on tiny models and made-up documents; on the packaged model against lm-eval's own (marked `model`)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import partial

import pytest
import torch
from fake_session import FakeSession
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.metrics import METRICS
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS
from kvfrontier.sources import tasks as sources
from kvfrontier.workloads import _lm_eval_tasks as lm_eval_tasks
from kvfrontier.workloads._lm_eval_model import SessionLM
from kvfrontier.workloads._scoring import Question, batches
from packaged_model import packaged_model
from tiny import tiny_llama
from torch_strategies import TORCH_STRATEGIES
from toy_tokenizer import VOCAB, toy_tokenizer

FULL = STRATEGIES.get("full")()
RECENT = STRATEGIES.get("streaming_llm")(budget=0.5, num_sinks=0)
MASK = STRATEGIES.get("h2o_oracle_mask")
WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay", "kite", "lynx")
OTHERS = ("newt", "owl", "puma", "ram", "seal")
LETTERED = {"text": ["red", "blue", "grey"], "label": ["A", "B", "C"]}
MADE_UP = {
    "hellaswag": lambda w: {
        "activity_label": "Zoo [step] tour", "ctx_a": f"We see a {w}.", "ctx_b": "the {w}", "label": "1",
        "endings": ["runs [title] away  fast.", "sleeps.", " eats.", "is [header] gone."],
    },
    "boolq": lambda w: {"passage": f"Animals -- A {w} is here.", "question": f"is a {w} here", "label": 1},
    "piqa": lambda w: {"goal": f"How to feed a {w}?", "sol1": "Give it hay.", "sol2": "Give it a car.", "label": 0},
    "winogrande": lambda w: {
        "sentence": f"The {w} hid from the bear because the _ was small.",
        "option1": w, "option2": "bear", "answer": "1",
    },
    "arc_easy": lambda w: {"question": f"Which colour has a {w}?", "choices": LETTERED, "answerKey": "C"},
    "openbookqa": lambda w: {"question_stem": f"A {w} is", "choices": LETTERED, "answerKey": "B"},
    "mmlu_anatomy": lambda w: {"question": f" Where is a {w}? ", "choices": ["in", "on", "at", "by"], "answer": 2},
    "lambada_openai": lambda w: {"text": f"You look for a {w} and you find a {w}"},
    "gsm8k": lambda w: {"question": f"A {w} and a {w}?", "answer": "1 + 1 = 2\n#### 2"},
}  # fmt: skip
PROMPTS = {
    "hellaswag": ("Zoo tour: We see a cat. The {w}", [" runs. away fast.", " sleeps.", " eats.", " is gone."]),
    "boolq": ("Animals -- A cat is here.\nQuestion: is a cat here?\nAnswer:", [" no", " yes"]),
    "piqa": ("Question: How to feed a cat?\nAnswer:", [" Give it hay.", " Give it a car."]),
    "arc_easy": ("Question: Which colour has a cat?\nAnswer:", [" red", " blue", " grey"]),
    "openbookqa": ("A cat is", [" red", " blue", " grey"]),
    "mmlu_anatomy": (
        "The following are multiple choice questions (with answers) about anatomy.\n\n"
        "Where is a cat?\nA. in\nB. on\nC. at\nD. by\nAnswer:", [" A", " B", " C", " D"],
    ),
    "lambada_openai": ("You look for a cat and you find a", [" cat"]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def made_up(monkeypatch, request):
    """Twelve documents of each task; those that upstream has examples for have them."""
    if "model" in request.keywords:
        return

    def documents(task):
        return [MADE_UP[task](word) for word in WORDS]

    monkeypatch.setattr(lm_eval_tasks, "documents", documents)

    def examples(task):
        return [MADE_UP[task](word) for word in OTHERS] if sources.OFFLINE[task].examples else None

    monkeypatch.setattr(lm_eval_tasks, "examples", examples)


def prompts(task, count=12, num_fewshot=0, seed=0):
    """Arguments of each document's requests."""
    loaded = lm_eval_tasks.load(task, False, count, num_fewshot, seed)
    loaded.task.set_fewshot_seed(seed)
    loaded.task.build_all_requests(samples=loaded.samples)
    found = defaultdict(list)
    for instance in loaded.task.instances:
        found[loaded.numbers[instance.doc_id]].append(instance.args)
    return found


def session(keeps=None, **shape):
    return FakeSession(tiny_llama(vocab=VOCAB, **shape), toy_tokenizer(), keeps)


def measure(shared, strategy, **settings):
    found = defaultdict(list)
    for one in WORKLOADS.get("lm_eval")(**{"task": "piqa", "documents": 3} | settings).run(shared, strategy, seed=0):
        found[one.metric].append(one)
    return found


def values(found, metric):
    return [one.value for one in found[metric]]


@pytest.mark.parametrize("task", sorted(PROMPTS))
def test_prompts_are_upstreams_to_the_letter(task):
    context, answers = PROMPTS[task]
    assert prompts(task)[WORDS.index("cat")] == [(context, answer) for answer in answers]


def test_winogrande_has_a_context_for_each_option():
    end = " was small."
    head = "The cat hid from the bear because the "
    assert prompts("winogrande")[2] == [(f"{head}cat", end), (f"{head}bear", end)]


def test_gsm8k_generates_after_five_examples_unless_told_otherwise():
    asked = prompts("gsm8k", count=4, num_fewshot=None)
    number, [(context, settings)] = next(iter(asked.items()))
    word = WORDS[number]
    assert context.count("\n#### 2\n\n") == 5 and context.endswith(f"Question: A {word} and a {word}?\nAnswer:")
    assert settings["until"][0] == "Question:" and not settings["do_sample"]


@pytest.mark.parametrize("task", sorted(MADE_UP))
def test_examples_never_come_from_documents_that_are_asked(task):
    asked = prompts(task, count=6, num_fewshot=2)
    told = {WORDS[number] for number in asked}
    for number, requests in asked.items():
        for context, *_ in requests:
            shown = set(re.findall(r"\w+", context))
            assert shown & told == {WORDS[number]} and len(shown & {*WORDS, *OTHERS}) == 3


def test_a_hub_tasks_examples_are_not_its_asked_documents_either(monkeypatch):
    """Of a task whose only split is the one that is asked."""
    monkeypatch.setattr(lm_eval_tasks, "_manager", lambda folder, real=lm_eval_tasks._manager: real("piqa"))
    own = {"custom_dataset": _one_split, "training_split": None, "num_fewshot": 3}
    loaded = lm_eval_tasks._from_hub("piqa", 4, own, 0)
    assert loaded.samples == loaded.numbers and len(loaded.samples) == 4
    pool = [document["goal"] for document in loaded.task.sampler.fewshot_docs()]
    assert len(pool) == 8 and not {WORDS[number] for number in loaded.samples} & set(re.findall(r"\w+", " ".join(pool)))
    with pytest.raises(Unsupported, match="3 few-shot examples, and 3 documents"):
        lm_eval_tasks._from_hub("piqa", 9, own, 0)


def _one_split(**_):
    import datasets

    return datasets.DatasetDict({"validation": datasets.Dataset.from_list([MADE_UP["piqa"](word) for word in WORDS])})


def test_too_few_documents_for_examples_are_refused():
    with pytest.raises(Unsupported, match="2 few-shot examples, and 1 documents of piqa that are not asked"):
        prompts("piqa", count=11, num_fewshot=2)


def test_mmlu_shows_its_five_examples_in_their_order():
    (context, _), *_ = next(iter(prompts("mmlu_anatomy", count=2, num_fewshot=5).values()))
    assert re.findall(r"Where is a (\w+)", context)[:5] == list(OTHERS)


def test_documents_are_a_random_choice_that_only_the_seed_decides():
    few, many, other = (set(prompts("piqa", count, seed=seed)) for count, seed in ((3, 0), (6, 0), (6, 1)))
    assert few < many and many != other and few != {0, 1, 2}


def test_a_task_that_the_wheel_lacks_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"'hellaswg' it has not. Did you mean 'hellaswag'.*documents_from: hub"):
        WORKLOADS.get("lm_eval")(task="hellaswg")
    assert WORKLOADS.get("lm_eval")(task="hellaswg", documents_from="hub").data() == ()
    with pytest.raises(ValueError, match="a task: hellaswag, boolq, piqa"):
        WORKLOADS.get("lm_eval")()


def test_a_group_is_no_task(monkeypatch):
    monkeypatch.setattr(lm_eval_tasks, "_manager", lambda folder, real=lm_eval_tasks._manager: real("arc"))
    with pytest.raises(KVFrontierError, match="several tasks 'ai2_arc'"):
        lm_eval_tasks.load("ai2_arc", True, 1, None, 0)


@pytest.mark.parametrize("settings", [{}, {"held_back_tokens": 7}, {"feed": "steps"}, {"protocol": "one_pass"}])
@pytest.mark.parametrize("task", ["piqa", "winogrande", "boolq", "lambada_openai"])
def test_the_full_cache_gives_the_models_own_log_likelihoods(task, settings):
    shared = TorchSession(tiny_llama(vocab=VOCAB), toy_tokenizer())
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

    ours = measure(TorchSession(tiny_llama(vocab=VOCAB), toy_tokenizer()), RECENT, **settings)
    masked = measure(session(keep_recent), RECENT, **settings)
    assert values(ours, "log_likelihood") == pytest.approx(values(masked, "log_likelihood"), abs=1e-3)
    assert max(map(abs, values(ours, "margin_change"))) > 0.01
    assert values(ours, "evicted_tokens") == values(masked, "evicted_tokens")


def test_each_document_says_what_it_lost():
    found = measure(TorchSession(tiny_llama(vocab=VOCAB), toy_tokenizer()), RECENT, held_back_tokens=3)
    names = ("context_tokens", "evicted_tokens", "effective_budget")
    for tokens, lost, left in zip(*(values(found, name) for name in names), strict=True):
        assert lost == (tokens - 3) // 2 and left == pytest.approx((tokens - lost) / tokens)
    assert values(found, "budget_bites") == [1.0] * 3
    assert [one.value for one in found["achieved_budget"]] == [pytest.approx(0.5, abs=0.02)]
    assert {one.phase for one in found["kv_device_bytes"]} == {"prefill"}


def test_a_budget_that_no_context_reaches_says_so():
    found = measure(TorchSession(tiny_llama(vocab=VOCAB), toy_tokenizer()), STRATEGIES.get("h2o")(budget=500))
    assert values(found, "budget_bites") == [0.0] * 3 and set(values(found, "margin_change")) == {0.0}
    assert "budget_bites" not in measure(session(), FULL)


def test_scores_are_lm_evals_and_follow_from_the_log_likelihoods():
    found = measure(session(), FULL, task="arc_easy", documents=6)
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

    def document(number):
        letters = list("ABCDE"[: 3 + number % 3])
        choices = {"text": [f"thing {letter}" for letter in letters], "label": letters}
        return {"question": f"Which is {WORDS[number]}?", "choices": choices, "answerKey": "ABC"[number // 5]}

    monkeypatch.setattr(lm_eval_tasks, "documents", lambda task: [document(number) for number in range(12)])
    found = measure(session(), FULL, task="arc_easy", documents=7)
    asked = [one.request for one in found["acc"]]
    guess, majority = (found[f"{name}_accuracy"] for name in ("guess", "majority"))
    assert [one.value for one in guess] == [pytest.approx(sum(1 / (3 + number % 3) for number in asked) / 7)]
    assert [one.value for one in majority] == [max(Counter(number // 5 for number in asked).values()) / 7]
    for (one,) in (guess, majority):
        assert (one.phase, one.request, METRICS[one.metric].role, METRICS[one.metric].kind) == ("", None, "", "value")
    assert not {"guess_accuracy", "majority_accuracy"} & set(measure(session(), FULL, task="lambada_openai"))


def test_a_second_way_to_read_an_answer_is_no_second_item(monkeypatch):
    """Four answers, read by GSM8K's `strict-match` and by its `flexible-extract`; all should be 2."""
    said = iter(["#### 2", "It must be 2", "#### 3, or 2", "Who knows?"])
    monkeypatch.setattr(SessionLM, "_has_ended", lambda *_: True)
    monkeypatch.setattr(SessionLM, "_text", lambda *_: next(said))
    found = measure(session(), FULL, task="gsm8k", documents=4, num_fewshot=0)
    strict, flexible = found["exact_match"], found["task_score"]
    other = "exact_match, flexible-extract"
    assert ({one.phase for one in strict}, {one.phase for one in flexible}) == ({""}, {other})
    assert len(strict) == len({one.request for one in strict}) == 4
    assert sorted((a.value, b.value) for a, b in zip(strict, flexible, strict=True)) == [(0, 0), (0, 1), (0, 1), (1, 1)]
    assert [one.request for one in strict] == [one.request for one in flexible]
    assert {one.phase for one in found["standard_error"]} == {"exact_match", other}


def test_a_context_is_read_once_and_the_full_cache_asked_once_a_session(monkeypatch):
    shared, read = session(), []
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
    shared, read = session(), []
    from kvfrontier.workloads import _lm_eval_model

    def questions(self, text, *rest, old=_lm_eval_model.SessionLM._question):
        question = old(self, text, *rest)
        read.append((text, shared.tokenizer.decode(question.context[: question.read])))
        return question

    monkeypatch.setattr(_lm_eval_model.SessionLM, "_question", questions)
    measure(shared, FULL, task="boolq", held_back_from="\nQuestion:")
    assert len(read) == 3 and all(text.partition("\nQuestion:")[0] == seen for text, seen in read)
    with pytest.raises(KVFrontierError, match="'nowhere' does not stand in every context"):
        measure(session(), FULL, held_back_from="nowhere")


def test_one_pass_is_a_protocol_of_its_own():
    ask = partial(WORKLOADS.get("lm_eval"), task="piqa")
    ask(protocol="one_pass").check_strategy(MASK())
    ask(protocol="one_pass").check_strategy(FULL)
    with pytest.raises(Unsupported, match="lm_eval asks it with `protocol: one_pass`"):
        ask().check_strategy(MASK())
    with pytest.raises(Unsupported, match="'h2o' compresses what was read, it has no mask over a whole sequence"):
        ask(protocol="one_pass").check_strategy(STRATEGIES.get("h2o")())
    shared = TorchSession(tiny_llama(vocab=VOCAB), toy_tokenizer())
    everything = measure(shared, MASK(heavy_ratio=1.0, recent_ratio=0.0), protocol="one_pass")
    assert values(everything, "margin_change") == pytest.approx([0] * 3, abs=1e-4)
    some = measure(shared, MASK(heavy_ratio=0.1, recent_ratio=0.1), protocol="one_pass")
    assert max(map(abs, values(some, "margin_change"))) > 0.01


def test_answers_that_are_generated_stop_where_the_task_says():
    from kvfrontier.workloads._account import KVAccount
    from kvfrontier.workloads._lm_eval_model import Protocol, SessionLM
    from lm_eval.api.instance import Instance

    shared = TorchSession(tiny_llama(vocab=VOCAB), toy_tokenizer())
    protocol = Protocol(False, 1, "", "block", 2)

    def answers(*settings):
        texts = ("A long question?", "Another one", "Third")
        requests = [Instance("generate_until", {}, (text, one), 0) for text, one in zip(texts, settings, strict=True)]
        return SessionLM(shared, FULL, protocol, KVAccount(shared)).generate_until(requests)

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


def test_contexts_of_unlike_length_are_not_read_together():
    questions = [Question((1,) * tokens, tokens - 1, ((2, 3),)) for tokens in (10, 100, 9, 80, 50, 8, 7)]
    assert batches(questions, 3) == [[1, 3], [4], [0, 2, 5], [6]]


def test_nothing_is_truncated():
    with pytest.raises(Unsupported, match=r"a document has .* tokens, fake 24 positions"):
        measure(session(max_positions=24), FULL)


@pytest.mark.parametrize("name", TORCH_STRATEGIES)
def test_every_strategy_is_asked_by_one_of_the_protocols(name):
    """What it keeps is checked against its formula on the way."""
    strategy = STRATEGIES.get(name)()
    protocol = "one_pass" if "whole_sequence" in strategy.requires() else "compressed"
    shared = TorchSession(tiny_llama(layers=3, vocab=VOCAB), toy_tokenizer())
    found = measure(shared, strategy, documents=2, protocol=protocol, side_by_side=2)
    assert len(found["log_likelihood"]) == 4 and all(value < 0 for value in values(found, "log_likelihood"))
    assert ("kept_tokens" in found) == (protocol == "compressed")


@pytest.mark.model
def test_with_the_whole_budget_log_likelihoods_are_those_of_lm_evals_own_model():
    """One thread; two documents of each of the six tasks; few-shot on one. The same prompts go to both."""
    from kvfrontier.plan.catalog import load_devices
    from kvfrontier.plan.project import Project
    from kvfrontier.workloads._account import KVAccount
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    shared = ENGINES.get("torch")().load(packaged_model(), load_devices(Project.find())["cpu"])
    strategy, found = STRATEGIES.get("h2o")(budget=1.0), {}
    for task in ("hellaswag", "boolq", "piqa", "winogrande", "arc_easy", "arc_challenge", "openbookqa"):
        asked = WORKLOADS.get("lm_eval")(task=task, documents=2, num_fewshot=1 if task == "openbookqa" else None)
        found[task] = asked._loaded(shared, 0), asked._evaluated(shared, strategy, 0, KVAccount(shared))
    model, tokenizer = shared.model, shared.tokenizer
    shared.close()
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    for task, (loaded, ours) in found.items():
        loaded.task.set_fewshot_seed(0)
        result = evaluate(theirs, {"tasks": {task: loaded.task}}, samples={task: loaded.samples})
        expected = [[one[0][0] for one in sample["resps"]] for sample in result["samples"][task]]
        for answer, row in zip(ours.answers, expected, strict=True):
            assert answer.log_likelihoods == pytest.approx(row, abs=1e-4), task
        assert {answer.scores["acc", ""] for answer in ours.answers} == {
            sample["acc"] for sample in result["samples"][task]
        }
