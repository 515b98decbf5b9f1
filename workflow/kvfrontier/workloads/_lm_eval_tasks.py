"""lm-eval's own tasks, ready to be evaluated on a seeded random part of their documents."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from kvfrontier.errors import KVFrontierError, Unsupported, did_you_mean
from kvfrontier.sources.tasks import OFFLINE, documents, examples

FOLDER = Path(lm_eval.tasks.__file__).parent
FEWSHOT_SPLIT = "kept_for_examples"
FEWSHOT_POOL = 256  # documents that examples are drawn from where the evaluated split is the only one


@dataclass(frozen=True)
class Loaded:
    """A task, which of its documents are asked (ascending), and their numbers in the whole split."""

    task: Task
    samples: list[int]
    numbers: list[int]

    @property
    def name(self) -> str:
        """As lm-eval knows it."""
        return self.task.config.task


def load(name: str, from_hub: bool, count: int, num_fewshot: int | None, seed: int) -> Loaded:
    """At most `count` documents of a task, the same for a seed, and those of a smaller count among those of a larger.

    Few-shot examples never come from documents that are asked. Raises Unsupported where no others are left.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    settings = {} if num_fewshot is None else {"num_fewshot": num_fewshot}
    return (_from_hub if from_hub else _from_wheel)(name, count, settings, seed)


def _from_wheel(name: str, count: int, settings: dict[str, Any], seed: int) -> Loaded:
    source, everything = OFFLINE[name], documents(name)
    chosen, others = _choose(name, len(everything), count, seed)
    pool = examples(name) or [everything[number] for number in others[:FEWSHOT_POOL]]
    splits = {source.split: [everything[number] for number in chosen], FEWSHOT_SPLIT: pool or everything[:1]}

    def stored(**_: Any) -> datasets.DatasetDict:
        return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})

    own = {"custom_dataset": stored, "training_split": None, "fewshot_split": FEWSHOT_SPLIT}
    task = _defined(_manager(source.folder), name, own | settings)
    _require_examples(task, len(pool))
    return Loaded(task, list(range(len(chosen))), chosen)


def _from_hub(name: str, count: int, settings: dict[str, Any], seed: int) -> Loaded:
    task = _defined(_manager(""), name, settings)
    evaluated = task.eval_docs
    chosen, _ = _choose(name, len(evaluated), count, seed)
    if task.config.num_fewshot:
        asked = [evaluated[number] for number in chosen]
        pool = [document for document in task.sampler.fewshot_docs() if document not in asked]
        task.sampler.replace_df(pool)
        _require_examples(task, len(pool))
    return Loaded(task, chosen, chosen)


def _defined(manager: TaskManager, name: str, overrides: dict[str, Any]) -> Task:
    """The task as lm-eval defines it, with other documents or another number of examples."""
    if name not in manager.all_subtasks:
        kind = "several tasks" if name in manager.all_tasks else "no task"
        raise KVFrontierError(f"lm-eval calls {kind} '{name}'. {did_you_mean(name, manager.all_subtasks)}")
    wanted = {"group": "asked", "task": [{"task": name, **overrides}]}
    (task,) = manager.load([wanted])["tasks"].values()
    return task


@cache
def _manager(folder: str) -> TaskManager:
    """Of all tasks (10 s), or of one of lm-eval's folders (at once)."""
    return TaskManager(include_path=str(FOLDER / folder), include_defaults=False) if folder else TaskManager()


def _choose(name: str, total: int, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the documents to ask, ascending, and of the others, in a random order. Never the head of a file:
    files are sorted by what they were made from."""
    order = list(range(total))
    random.Random(f"lm_eval-{name}-{seed}").shuffle(order)
    return sorted(order[:count]), order[count:]


def _require_examples(task: Task, pool: int) -> None:
    wanted = task.config.num_fewshot or 0
    spare = (
        task.fewshot_cfg.split == task.config.test_split
    )  # lm-eval draws one more, lest it draws the question itself
    if wanted and pool < wanted + spare:
        raise Unsupported(
            f"{wanted} few-shot examples, and {pool} documents of {task.config.task} that are not asked: use fewer"
        )
