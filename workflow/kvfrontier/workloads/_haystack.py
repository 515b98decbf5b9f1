"""A text of exactly so many tokens that hides needles, and the question after it, in the model's own chat template."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kvfrontier.errors import Unsupported
from kvfrontier.workloads._chat import continuations, ids_of, joined, render
from kvfrontier.workloads._needles import Hunt, Needle

INTRODUCTION = "Read this text carefully. You will be asked about it afterwards."
MARK = "[[the text]]"
FIRST_SENTENCES = 32  # that are counted; twice as many until they suffice


@dataclass(frozen=True)
class Haystack:
    """Token ids of one item: the text with what the template puts before it, the question, the beginning of its answer
    (empty: the model begins it), the alternatives as they go on from there, and the question with no text before it.

    places: of each needle asked for, the positions of the tokens that spell its answer.
    """

    text: list[int]
    question: list[int]
    beginning: list[int]
    alternatives: list[list[int]]
    places: list[list[int]]
    alone: list[int]

    def split(self, question_seen: bool) -> tuple[list[int], list[int]]:
        """What is read before the cache is compressed, and what after it.

        question_seen: the question, too, but for the answer's beginning, or where there is none for the last token:
        what is predicted first would otherwise be predicted from what was not compressed yet.
        """
        after = self.question + self.beginning
        seen = len(self.question) - (not self.beginning) if question_seen else 0
        return self.text + after[:seen], after[seen:]


def hide(
    tokenizer: Any,
    hunt: Hunt,
    hidden: Sequence[tuple[float, Needle]],
    filler: Iterator[str],
    context_tokens: int,
    answer_prefix: bool,
) -> Haystack:
    """Lay needles into as much filler as makes `context_tokens` tokens; the last sentence is cut where they are full.

    hidden: with their depths, 0 before the first sentence, 1 before the last; those that `hunt` asks for come first.
    Raises Unsupported where needles and template leave no room for a sentence between them.
    """
    before, after = render(tokenizer, (), f"{INTRODUCTION}\n\n{MARK}\n\n{hunt.question}").split(MARK)
    opening = ids_of(tokenizer, before, first=True)
    room = context_tokens - len(opening)
    text = _fill(tokenizer, hidden, filler, room)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded.offset_mapping[: max(room, 0)]
    end = offsets[-1][1] if offsets else 0
    if any(text.index(needle.sentence) + len(needle.sentence) > end for _, needle in hidden):
        least = len(ids_of(tokenizer, " ".join(needle.sentence for _, needle in hidden))) + len(opening)
        raise Unsupported(f"context_tokens {context_tokens}: needles and what stands before them take {least} tokens")
    beginning = joined(after, hunt.beginning) if answer_prefix else ""
    question, begun = ids_of(tokenizer, after), ids_of(tokenizer, beginning)
    return Haystack(
        text=opening + encoded.input_ids[:room],
        question=question,
        beginning=begun,
        alternatives=continuations(tokenizer, beginning or after, hunt.alternatives),
        places=[[len(opening) + at for at in _spelling(offsets, text, needle)] for needle in hunt.asked],
        alone=ids_of(tokenizer, render(tokenizer, (), hunt.question), first=True) + begun,
    )


def _fill(tokenizer: Any, hidden: Sequence[tuple[float, Needle]], filler: Iterator[str], room: int) -> str:
    """The needles in as few sentences as make `room` tokens or more."""
    sentences: list[str] = []

    def tokens(count: int) -> int:
        return len(ids_of(tokenizer, _laid(hidden, sentences[:count])))

    while len(sentences) < FIRST_SENTENCES or tokens(len(sentences)) < room:
        more = list(islice(filler, max(FIRST_SENTENCES, len(sentences))))
        if not more:
            raise Unsupported(f"the texts end after {tokens(len(sentences))} of {room} tokens: use another `filler`")
        sentences += more
    count = bisect_left(range(1, len(sentences)), room, key=tokens) + 1
    return _laid(hidden, sentences[:count])


def _laid(hidden: Sequence[tuple[float, Needle]], sentences: Sequence[str]) -> str:
    before: list[list[str]] = [[] for _ in sentences]
    for depth, needle in sorted(hidden, key=lambda pair: pair[0]):
        before[round(depth * (len(sentences) - 1))].append(needle.sentence)
    return " ".join(said for needles, sentence in zip(before, sentences, strict=True) for said in (*needles, sentence))


def _spelling(offsets: Sequence[tuple[int, int]], text: str, needle: Needle) -> list[int]:
    """Indices of the tokens that spell a needle's answer."""
    start = text.index(needle.sentence)
    low = text.rindex(needle.answer, start, start + len(needle.sentence))
    high = low + len(needle.answer)
    return [index for index, (first, last) in enumerate(offsets) if first < high and last > low]
