"""`lm_eval` with the whole budget against lm-eval's own model for transformers, document by document."""

from __future__ import annotations

from collections import defaultdict

import pytest
from kvfrontier.plan.catalog import load_devices
from kvfrontier.plan.project import Project
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS
from kvfrontier.workloads._account import KVAccount
from packaged_model import packaged_model

TASKS = {
    "hellaswag": (2, 0), "boolq": (2, 0), "piqa": (2, 0), "winogrande": (2, 0), "arc_easy": (2, 0),
    "arc_challenge": (2, 0), "openbookqa": (2, 1), "gsm8k": (3, 0),
}  # fmt: skip
"""And how many documents, after how many examples."""
ANSWER_TOKENS = 16
FURTHER = "flexible-extract"  # what GSM8K reads an answer with after its first filter


@pytest.mark.model
def test_scores_likelihoods_and_answers_are_those_of_lm_evals_own_model():
    """One thread; the same prompts go to both."""
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    shared = ENGINES.get("torch")().load(packaged_model(), load_devices(Project.find())["cpu"])
    strategy, found = STRATEGIES.get("h2o")(budget=1.0), {}
    for task, (documents, examples) in TASKS.items():
        asked = WORKLOADS.get("lm_eval")(task=task, documents=documents, num_fewshot=examples)
        loaded = asked._loaded(shared, 0)
        if loaded.task.OUTPUT_TYPE == "generate_until":
            loaded.task.set_config("generation_kwargs", {"max_gen_toks": ANSWER_TOKENS}, update=True)
        found[task] = loaded, asked._evaluated(shared, strategy, 0, KVAccount(shared))
    model, tokenizer = shared.model, shared.tokenizer
    shared.close()
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    for task, (loaded, ours) in found.items():
        loaded.task.set_fewshot_seed(0)
        result = evaluate(theirs, {"tasks": {task: loaded.task}}, samples={task: loaded.samples}, bootstrap_iters=0)
        by_document = defaultdict(list)
        for sample in result["samples"][task]:
            by_document[loaded.numbers[loaded.samples.index(sample["doc_id"])]].append(sample)
        assert len(ours.answers) == len(by_document) == TASKS[task][0]
        for answer in ours.answers:
            assert_same(task, answer, by_document[answer.number])


def assert_same(task, answer, samples):
    """samples: lm-eval's of the same document, one a filter."""
    expected = {
        ("task_score", f"{name}, {FURTHER}") if sample["filter"] == FURTHER else (name, ""): sample[name]
        for sample in samples
        for name in sample["metrics"]
    }
    assert answer.scores == expected, task
    said = [responses[0] for responses in samples[0]["resps"]]
    if task == "gsm8k":
        assert [answer.given] == said and len(answer.given.split()) > 3 and len(expected) == 2
    else:
        assert answer.log_likelihoods == pytest.approx([likelihood for likelihood, _ in said], abs=1e-4), task
        assert len(expected) == (1 if task in ("boolq", "winogrande") else 2), "acc, and acc_norm where upstream has it"
