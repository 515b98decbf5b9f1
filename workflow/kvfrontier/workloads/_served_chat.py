"""Chats as a server sees them: one system prompt for all, and each turn's prompt is all that was said, to the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvfrontier.errors import Unsupported
from kvfrontier.sources.text import TextKind, exact_prompts
from kvfrontier.workloads._chat import ids_of, render

SYSTEM, FIRST, ANSWER, NEXT = "SYSTEM-PROMPT", "FIRST-MESSAGE", "FIRST-ANSWER", "NEXT-MESSAGE"
"""Stand where texts will: a template is asked what it puts around them."""


@dataclass(frozen=True)
class Frame:
    """Ids that a chat template puts between what is said. Texts and answers go between them as they are, so their
    lengths are exact and what was once read is never spelled in another way."""

    opening: list[int]
    before_first: list[int]  # after the system prompt
    before_answer: list[int]
    before_next: list[int]  # after an answer

    @property
    def turn_tokens(self) -> int:
        """Of a turn after the first, without what is said in it."""
        return len(self.before_next) + len(self.before_answer)


def frame_of(tokenizer: Any) -> Frame:
    """Raises Unsupported where the template rewrites earlier turns: then no prompt begins with the one before."""
    first, second = _rendered(tokenizer)
    opening, _, rest = first.partition(SYSTEM)
    before_first, _, before_answer = rest.partition(FIRST)
    before_next, _, before_next_answer = second.removeprefix(first).partition(ANSWER)[2].partition(NEXT)
    if not second.startswith(first) or before_next_answer != before_answer:
        raise Unsupported("this model's chat template rewrites earlier turns, so no turn begins with the one before")
    return Frame(
        ids_of(tokenizer, opening, first=True),
        *(ids_of(tokenizer, text) for text in (before_first, before_answer, before_next)),
    )


def _rendered(tokenizer: Any) -> tuple[str, str]:
    """A chat that waits for its first answer, and one that waits for its second."""
    from jinja2 import TemplateError

    try:
        return render(tokenizer, [], FIRST, SYSTEM), render(tokenizer, [(FIRST, ANSWER)], NEXT, SYSTEM)
    except TemplateError:  # it has no such role: the text then leads the first message
        first = f"{SYSTEM}\n\n{FIRST}"
        return render(tokenizer, [], first), render(tokenizer, [(first, ANSWER)], NEXT)


def exact_texts(tokenizer: Any, kind: TextKind, count: int, tokens: int, seed: int) -> list[list[int]]:
    """As `exact_prompts`, without a beginning-of-text token in front."""
    texts = exact_prompts(tokenizer, kind, count, tokens + 1, seed)
    return [ids[1:] if ids[0] == tokenizer.bos_token_id else ids[:-1] for ids in texts]
