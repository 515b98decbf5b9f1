"""What lm-eval found of each document, as measurements: scores, log-likelihoods, margins, what the cache had lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from lm_eval.api.metrics import mean, mean_stderr
from lm_eval.evaluator import evaluate

from kvfrontier.errors import KVFrontierError
from kvfrontier.metrics import (
    ACC,
    ACC_NORM,
    ANSWER_MARGIN,
    CONTEXT_TOKENS,
    EFFECTIVE_BUDGET,
    EVICTED_TOKENS,
    EXACT_MATCH,
    FULL_AGREEMENT,
    GUESS_ACCURACY,
    LOG_LIKELIHOOD,
    MAJORITY_ACCURACY,
    MARGIN_CHANGE,
    STANDARD_ERROR,
    TASK_SCORE,
    Measurement,
)
from kvfrontier.workloads._lm_eval_model import Read, SessionLM
from kvfrontier.workloads._lm_eval_tasks import Loaded

NAMED = frozenset({ACC, ACC_NORM, EXACT_MATCH})
"""Scores whose metric has lm-eval's name, where the task's first filter reads them."""
ONLY_FILTER = "none"  # what lm-eval calls the one way to read an answer, where there is one


@dataclass
class Answer:
    """One document. scores: by metric and phase; right: places of right answers among the choices."""

    number: int
    reads: list[Read]
    scores: dict[tuple[str, str], float] = field(default_factory=dict)
    log_likelihoods: list[float] = field(default_factory=list)
    right: frozenset[int] = frozenset()
    given: Any = None  # what the model answered, to be compared with another cache's answer

    @property
    def margin(self) -> float | None:
        """Log-likelihood of the best right answer minus that of the best wrong one; None where there is no such."""
        right = [value for place, value in enumerate(self.log_likelihoods) if place in self.right]
        wrong = [value for place, value in enumerate(self.log_likelihoods) if place not in self.right]
        return max(right) - max(wrong) if right and wrong else None


@dataclass(frozen=True)
class Evaluation:
    """A task under one strategy. totals: what only all documents together give, by metric and phase."""

    answers: list[Answer]
    totals: dict[tuple[str, str], float]


def evaluated(model: SessionLM, loaded: Loaded, seed: int) -> Evaluation:
    """Let lm-eval ask `model` the documents. The same seed gives the same few-shot examples every time."""
    loaded.task.set_fewshot_seed(seed)
    # Standard errors of means need no bootstrap, which lm-eval would start processes for.
    found = evaluate(
        model, {"tasks": {loaded.name: loaded.task}}, samples={loaded.name: loaded.samples}, bootstrap_iters=0
    )
    averaged = {name for name, how in loaded.task.aggregation().items() if how is mean}
    by_document: dict[int, Answer] = {}
    numbers = dict(zip(loaded.samples, loaded.numbers, strict=True))
    samples = found["samples"][loaded.name]  # of all documents with the first filter, then with the next one
    for sample in samples:
        number = numbers[sample["doc_id"]]
        if number not in by_document:
            by_document[number] = _answer(model, loaded, number, sample)
        for name in (name for name in sample["metrics"] if name in averaged):
            place = _metric_and_phase(name, sample["filter"], samples[0]["filter"])
            by_document[number].scores[place] = float(sample[name])
    answers = list(by_document.values())
    totals = dict(_totals(found["results"][loaded.name], averaged))
    return Evaluation(answers, totals | _errors(answers) | _floors(answers))


def measurements(own: Evaluation, full: Evaluation) -> Iterator[Measurement]:
    """Of every document, those that compare it with the full cache's answer included, and of all together."""
    for answer, reference in zip(own.answers, full.answers, strict=True):
        for metric, value, phase, turn in _values(answer, reference):
            yield Measurement(metric, value, phase, request=answer.number, turn=turn)
    for (metric, phase), value in own.totals.items():
        yield Measurement(metric, value, phase)


def _values(answer: Answer, reference: Answer) -> Iterator[tuple[str, float, str, int | None]]:
    """Metric, value, phase, turn."""
    yield CONTEXT_TOKENS, fmean(read.tokens for read in answer.reads), "", None
    yield EVICTED_TOKENS, fmean(read.lost for read in answer.reads), "", None
    yield EFFECTIVE_BUDGET, fmean(read.held / read.tokens for read in answer.reads), "", None
    for (metric, phase), value in answer.scores.items():
        yield metric, value, phase, None
    for place, value in enumerate(answer.log_likelihoods):
        yield LOG_LIKELIHOOD, value, "", place
    yield FULL_AGREEMENT, float(answer.given == reference.given), "", None
    if answer.margin is not None and reference.margin is not None:
        yield ANSWER_MARGIN, answer.margin, "", None
        yield MARGIN_CHANGE, answer.margin - reference.margin, "", None


def _answer(model: SessionLM, loaded: Loaded, number: int, sample: dict[str, Any]) -> Answer:
    contexts = list(dict.fromkeys(arguments[0] for arguments in sample["arguments"]))
    told = list(filter(None, contexts)) or contexts  # nothing at all is no context beside others (acc_mutual_info)
    answer = Answer(number, [model.reads[context] for context in told])
    responses = [response[0] for response in sample["resps"]]
    if loaded.task.OUTPUT_TYPE == "generate_until":
        answer.given = responses[0]
        return answer
    answer.log_likelihoods = [likelihood for likelihood, _ in responses]
    if loaded.task.OUTPUT_TYPE == "multiple_choice":
        choices = loaded.task.doc_to_choice(sample["doc"])
        answer.log_likelihoods = answer.log_likelihoods[: len(choices)]  # without the unconditional ones
        answer.right = _right(loaded, number, sample, choices)
        answer.given = max(range(len(choices)), key=answer.log_likelihoods.__getitem__)
    else:
        answer.given = responses[0][1]  # whether the text goes on as it should
    return answer


def _right(loaded: Loaded, number: int, sample: dict[str, Any], choices: list[str]) -> frozenset[int]:
    """Places of the right choices. Where each choice has a context of its own, lm-eval says them with the text.

    Raises KVFrontierError where one is no choice.
    """
    said = loaded.task.doc_to_text(sample["doc"]) if loaded.task.multiple_input else sample["target"]
    found = set()
    for one in said if isinstance(said, list) else [said]:
        place = choices.index(one) if isinstance(one, str) and one in choices else one
        if place not in range(len(choices)):
            raise KVFrontierError(
                f"document {number} of {loaded.name}: the right answer is {one!r}, expected one of its choices "
                f"{choices} or its place among them. lm-eval would count any answer as wrong: ask a task with labels"
            )
        found.add(place)
    return frozenset(found)


def _totals(results: dict[str, Any], averaged: set[str]) -> Iterator[tuple[tuple[str, str], float]]:
    """Scores that are no means over documents, such as a perplexity."""
    for key, value in results.items():
        name, _, way = key.partition(",")
        if way and not name.endswith("_stderr") and name not in averaged:
            yield (TASK_SCORE, _phase(name, way)), float(value)


def _errors(answers: list[Answer]) -> dict[tuple[str, str], float]:
    """Standard error of each score that is a mean over documents, by lm-eval's formula."""
    if len(answers) < 2:
        return {}
    by_score = {key: [answer.scores[key] for answer in answers] for key in answers[0].scores}
    return {(STANDARD_ERROR, phase or metric): mean_stderr(values) for (metric, phase), values in by_score.items()}


def _floors(answers: list[Answer]) -> dict[tuple[str, str], float]:
    """Accuracies that need no model: guessing, and always the same place. Of multiple choice alone."""
    right = Counter(place for answer in answers for place in answer.right)
    if not right:
        return {}
    guessed = fmean(len(answer.right) / len(answer.log_likelihoods) for answer in answers)
    return {(GUESS_ACCURACY, ""): guessed, (MAJORITY_ACCURACY, ""): max(right.values()) / len(answers)}


def _metric_and_phase(name: str, way: str, first: str) -> tuple[str, str]:
    """Of a score. An answer read in two ways is not two items of a metric: what further filters read stands apart."""
    return (name, "") if name in NAMED and way == first else (TASK_SCORE, _phase(name, way))


def _phase(name: str, way: str) -> str:
    """Of a score, and of how the answer was read off where there are several ways."""
    return name if way == ONLY_FILTER else f"{name}, {way}"
