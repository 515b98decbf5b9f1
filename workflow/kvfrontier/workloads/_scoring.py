"""Log-likelihoods of continuations under a cache: a context is read once and compressed, continuations come after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from kvfrontier.workloads._choice import Feed, TokenIds

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.engines.base import Sequences, Session
    from kvfrontier.strategies.base import Strategy

ALIKE = 2 / 3
Score = tuple[float, bool]
"""Log-likelihood of a continuation, and whether it is the greedy one."""


@dataclass(frozen=True)
class Question:
    """A context, how many of its tokens are read before the cache is compressed, and what may come after it.

    A context of a single token is read whole, any other one leaves a token at least: the first token after the
    compression would otherwise be predicted from what was not compressed yet.
    """

    context: TokenIds
    read: int
    continuations: tuple[TokenIds, ...]

    @property
    def tokens(self) -> int:
        """All that is fed."""
        return self.read + sum(map(len, self.rests))

    def rest(self, continuation: TokenIds) -> TokenIds:
        """What is fed after the compression: all but the last token is predicted from."""
        return self.context[self.read :] + continuation[:-1]

    @cached_property
    def rests(self) -> list[TokenIds]:
        """Each different one, the longest first; continuations of one token share theirs."""
        return sorted(
            {rest for rest in map(self.rest, self.continuations) if rest}, key=lambda rest: (-len(rest), rest)
        )


def batches(questions: Sequence[Question], width: int) -> list[list[int]]:
    """Places of the questions, those with most to read first, `width` at a time or fewer.

    Rows are padded to the longest of their batch, so a batch has none with less than ALIKE of its first one's tokens.
    """
    found: list[list[int]] = []
    for place in sorted(range(len(questions)), key=lambda place: -questions[place].tokens):
        least = ALIKE * questions[found[-1][0]].tokens if found else 0
        if found and len(found[-1]) < width and questions[place].tokens >= least:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def score_after(read: Sequences, after: Tensor, questions: Sequence[Question], feed: Feed) -> list[list[Score]]:
    """Scores of each row's continuations. read: the compressed cache, used up; after: logits [batch, vocab] after it.

    block: what comes after the compression is one extension for each continuation, on a copy. steps: a decode step a
    token, for strategies that act at those.
    """
    fed: list[dict[TokenIds, Tensor]] = [{} for _ in questions]
    most = max(len(question.rests) for question in questions)
    for number in range(most):
        asked = read.fork() if number + 1 < most else read
        # A batch advances together: rows with fewer continuations repeat a token whose logits nobody reads.
        rows = [question.rests[number] if number < len(question.rests) else (0,) for question in questions]
        logits = _extend(asked, rows) if feed == "block" else _step(asked, rows)
        for place, (question, row) in enumerate(zip(questions, logits, strict=True)):
            if number < len(question.rests):
                fed[place][question.rests[number]] = row
    return [
        [_score(after[place], fed[place].get(question.rest(tokens)), tokens) for tokens in question.continuations]
        for place, question in enumerate(questions)
    ]


def score_at_once(session: Session, strategy: Strategy, questions: Sequence[Question], width: int) -> list[list[Score]]:
    """The same, each context read together with its continuation in one pass: of no cache, but of a mask."""
    texts = [(question.context + tokens[:-1], tokens) for question in questions for tokens in question.continuations]
    found: dict[int, Score] = {}
    by_length = sorted(range(len(texts)), key=lambda place: len(texts[place][0]))
    for _, group in groupby(by_length, key=lambda place: len(texts[place][0])):
        places = list(group)
        for start in range(0, len(places), width):
            batch = places[start : start + width]
            last = max(len(texts[place][1]) for place in batch)
            logits = session.open(strategy).score([list(texts[place][0]) for place in batch], last=last)
            for place, row in zip(batch, logits, strict=True):
                found[place] = _likelihood(row, texts[place][1])
    scores = iter(found[place] for place in range(len(texts)))
    return [[next(scores) for _ in question.continuations] for question in questions]


def _extend(asked: Sequences, rows: Sequence[TokenIds]) -> Sequence[Tensor]:
    return asked.extend([list(row) for row in rows], all_logits=True)


def _step(asked: Sequences, rows: Sequence[TokenIds]) -> Sequence[Tensor]:
    import torch

    longest = max(map(len, rows))
    steps = [asked.decode([row[min(place, len(row) - 1)] for row in rows]) for place in range(longest)]
    return [logits[: len(row)] for logits, row in zip(torch.stack(steps, dim=1), rows, strict=True)]


def _score(after: Tensor, fed: Tensor | None, tokens: TokenIds) -> Score:
    """after: logits [vocab] when the cache was compressed; fed: [tokens, vocab] after what was fed, if anything was."""
    import torch

    return _likelihood(after[None] if fed is None else torch.cat((after[None], fed)), tokens)


def _likelihood(logits: Tensor, tokens: TokenIds) -> Score:
    """Of `tokens`, the last of which the last of these logits predict; what stands before is left out."""
    import torch

    log_probs = logits[-len(tokens) :].float().log_softmax(-1)
    wanted = torch.tensor(tokens, device=log_probs.device)
    return float(log_probs.gather(1, wanted[:, None]).sum()), bool((log_probs.argmax(-1) == wanted).all())
