"""Answers of a model over a cache: log-probabilities of alternatives, and greedy free text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from kvfrontier.strategies import STRATEGIES

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.engines.base import Sequences, Session

TokenIds = tuple[int, ...]
Feed = Annotated[
    Literal["block", "steps"],
    Field(description="How a question and its answers are read: at once, or token by token, as decode steps"),
]


def logits_after(asked: Sequences, rows: Sequence[Sequence[int]], feed: Feed) -> Tensor:
    """Logits `[batch, vocab]` after these tokens of each row; of steps, rows of one length."""
    if feed == "block":
        return asked.extend([list(row) for row in rows])
    for tokens in zip(*rows, strict=True):
        logits = asked.decode(tokens)
    return logits


def margins(
    asked: Sequences, logits: Tensor, alternatives: Sequence[Sequence[Sequence[int]]], right: Sequence[int],
    feed: Feed = "block",
) -> list[float]:  # fmt: skip
    """Log-probability of each row's right alternative (`right`: its place) minus that of the best wrong one."""
    scores = score_alternatives(asked, logits, alternatives, feed)
    return [
        row[place] - max(score for at, score in enumerate(row) if at != place)
        for row, place in zip(scores, right, strict=True)
    ]


def margins_of_full(
    session: Session,
    prompts: Sequence[Sequence[int]],
    alternatives: Sequence[Sequence[Sequence[int]]],
    right: Sequence[int],
) -> list[float]:
    """The same after prompts that the full cache reads: for controls, which no strategy has a part in."""
    asked = session.open(STRATEGIES.get("full")())
    return margins(asked, asked.prefill(prompts), alternatives, right)


def score_alternatives(
    asked: Sequences, logits: Tensor, alternatives: Sequence[Sequence[Sequence[int]]], feed: Feed = "block"
) -> list[list[float]]:
    """Log-probability of each row's alternatives, up to the token that tells one from all others.

    asked: the cache after the question, left as it is; logits: [batch, vocab] after it. Scoring only as far as needed
    gives no advantage to short answers. Usually the first token decides; where alternatives share beginnings, each
    shared beginning costs one extension of a forked copy. Steps: one row alone.
    """
    beginnings = [_shared_beginnings(row) for row in alternatives]
    known: list[dict[TokenIds, Tensor]] = [{(): row} for row in _log_softmax(logits)]
    for number in range(max(map(len, beginnings))):
        # A batch advances together: rows with fewer shared beginnings repeat a token whose answer nobody reads.
        fed = [row[number] if number < len(row) else alternatives[at][0][:1] for at, row in enumerate(beginnings)]
        for at, answer in enumerate(_log_softmax(logits_after(asked.fork(), fed, feed))):
            if number < len(beginnings[at]):
                known[at][beginnings[at][number]] = answer
    return [[_log_probability(tuple(tokens), known[index]) for tokens in row] for index, row in enumerate(alternatives)]


def _shared_beginnings(alternatives: Sequence[Sequence[int]]) -> list[TokenIds]:
    """Beginnings (not empty, shorter than the alternative) that at least two alternatives have in common."""
    seen: dict[TokenIds, int] = {}
    for tokens in alternatives:
        for length in range(1, len(tokens)):
            beginning = tuple(tokens[:length])
            seen[beginning] = seen.get(beginning, 0) + 1
    return [beginning for beginning, count in seen.items() if count > 1]


def _log_probability(tokens: TokenIds, known: dict[TokenIds, Tensor]) -> float:
    """Sum over the tokens while what stands before them is shared with another alternative."""
    total, length = 0.0, 0
    while length < len(tokens) and tokens[:length] in known:
        total += float(known[tokens[:length]][tokens[length]])
        length += 1
    return total


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1)


def greedy_answers(asked: Sequences, logits: Tensor, tokenizer: Any, most_tokens: int) -> list[str]:
    """Free text of each row after the question: greedy, until end of text or `most_tokens`. Uses `asked` up."""
    picked = []
    for step in range(most_tokens):
        tokens = logits.argmax(-1)
        picked.append(tokens.tolist())
        if step + 1 < most_tokens:
            logits = asked.decode(tokens)
    rows = [list(row) for row in zip(*picked, strict=True)]
    return [tokenizer.decode(_until_end(row, tokenizer.eos_token_id)) for row in rows]


def _until_end(tokens: list[int], end: int | None) -> list[int]:
    return tokens[: tokens.index(end)] if end in tokens else tokens


def contains_value(answer: str, value: str, distractors: Sequence[str]) -> bool:
    """Whether `value` stands in the answer as whole words, before any distractor."""
    words = _normalize(answer)
    place = words.find(_normalize(value))
    others = [words.find(_normalize(other)) for other in distractors]
    return place >= 0 and all(other < 0 or place < other for other in others)


def _normalize(text: str) -> str:
    """Lower case, everything but letters and digits as single spaces, one at each end: `find` then sees whole words."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} "
