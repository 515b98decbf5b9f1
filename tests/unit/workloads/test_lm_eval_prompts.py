"""What `lm_eval` asks: prompts to the letter, examples that are never asked, documents that only the seed decides."""

from __future__ import annotations

import re
from random import Random

import pytest
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.registry import WORKLOADS
from kvfrontier.workloads import _lm_eval_tasks as lm_eval_tasks
from made_up_tasks import MADE_UP, OTHERS, WORDS, prompts, use_made_up

PROMPTS = {
    "hellaswag": ("Zoo tour: We see a cat. The cat", [" runs. away fast.", " sleeps.", " eats.", " is gone."]),
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
FEW_SHOT = {  # {0} and {1}: the examples' words, {2}: that of the document
    "hellaswag": (
        "Zoo tour: We see a {0}. The {0} sleeps.\n\n"
        "Zoo tour: We see a {1}. The {1} sleeps.\n\n"
        "Zoo tour: We see a {2}. The {2}"
    ),
    "boolq": (
        "Animals -- A {0} is here.\nQuestion: is a {0} here?\nAnswer: yes\n\n"
        "Animals -- A {1} is here.\nQuestion: is a {1} here?\nAnswer: yes\n\n"
        "Animals -- A {2} is here.\nQuestion: is a {2} here?\nAnswer:"
    ),
    "piqa": (
        "Question: How to feed a {0}?\nAnswer: Give it hay.\n\n"
        "Question: How to feed a {1}?\nAnswer: Give it hay.\n\n"
        "Question: How to feed a {2}?\nAnswer:"
    ),
    "winogrande": (
        "The {0} hid from the bear because the {0} was small.\n\n"
        "The {1} hid from the bear because the {1} was small.\n\n"
        "The {2} hid from the bear because the {2}"
    ),
    "arc_easy": (
        "Question: Which colour has a {0}?\nAnswer: grey\n\n"
        "Question: Which colour has a {1}?\nAnswer: grey\n\n"
        "Question: Which colour has a {2}?\nAnswer:"
    ),
    "openbookqa": "A {0} is blue\n\nA {1} is blue\n\nA {2} is",
    "mmlu_anatomy": (
        "The following are multiple choice questions (with answers) about anatomy.\n\n"
        "Where is a {0}?\nA. in\nB. on\nC. at\nD. by\nAnswer: C\n\n"
        "Where is a {1}?\nA. in\nB. on\nC. at\nD. by\nAnswer: C\n\n"
        "Where is a {2}?\nA. in\nB. on\nC. at\nD. by\nAnswer:"
    ),
    "lambada_openai": (  # upstream's own two spaces: its target begins with one
        "You look for a {0} and you find a  {0}\n\n"
        "You look for a {1} and you find a  {1}\n\n"
        "You look for a {2} and you find a"
    ),
    "gsm8k": (
        "Question: A {0} and a {0}?\nAnswer: 1 + 1 = 2\n#### 2\n\n"
        "Question: A {1} and a {1}?\nAnswer: 1 + 1 = 2\n#### 2\n\n"
        "Question: A {2} and a {2}?\nAnswer:"
    ),
}


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    use_made_up(monkeypatch)


@pytest.mark.parametrize("task", sorted(PROMPTS))
def test_prompts_are_upstreams_to_the_letter(task):
    context, answers = PROMPTS[task]
    assert prompts(task)[WORDS.index("cat")] == [(context, answer) for answer in answers]


@pytest.mark.parametrize("task", sorted(MADE_UP))
def test_few_shot_prompts_are_upstreams_to_the_letter(task, monkeypatch):
    """Of the first document, after two examples in the order that the seed draws them; MMLU's are the first ones."""
    monkeypatch.setattr(lm_eval_tasks, "examples", lambda task: [MADE_UP[task](word) for word in OTHERS])
    drawn = OTHERS[:2] if task == "mmlu_anatomy" else Random(7).sample(OTHERS, 2)
    contexts = [context for context, _ in prompts(task, num_fewshot=2, seed=7)[0]]
    expected = [FEW_SHOT[task].format(*drawn, "ant")]
    if task == "winogrande":
        expected.append(expected[0].removesuffix("ant") + "bear")
    assert list(dict.fromkeys(contexts)) == expected


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
