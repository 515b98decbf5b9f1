"""Conversations as token ids, in the tested model's own chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from kvfrontier.errors import Unsupported
from kvfrontier.workloads._conversation import Conversation, Turn


@dataclass(frozen=True)
class Chat:
    """Token ids of a conversation: one list a turn, the question with the beginning of its answer, the alternatives."""

    turns: list[list[int]]
    question: list[int]
    alternatives: list[list[int]]  # continuations of the question, in the conversation's order
    value_positions: list[int]  # of the value's tokens in the history, wherever the fact's turn says it
    fact_turn: int
    opening_tokens: int  # of the first turn, before anybody speaks: a system prompt and the template's own

    @property
    def notes(self) -> dict[str, list[float]]:
        """What `cache/notes.py` calls `turns` and `oracle_span`, of the history."""
        turns = [float(number) for number, turn in enumerate(self.turns) for _ in turn]
        turns[: self.opening_tokens] = [-1.0] * self.opening_tokens
        spelled = set(self.value_positions)
        return {"turns": turns, "oracle_span": [float(place in spelled) for place in range(len(turns))]}

    def notes_by_turn(self) -> Iterator[dict[str, list[float]]]:
        """The same, turn by turn."""
        ends = list(accumulate(map(len, self.turns)))
        for start, end in pairwise([0, *ends]):
            yield {kind: said[start:end] for kind, said in self.notes.items()}

    @property
    def history(self) -> list[int]:
        """All turns, one after the other."""
        return [token for turn in self.turns for token in turn]

    def after_fact(self, most_tokens: int) -> list[int]:
        """The turns after the fact, at most the last `most_tokens` of them: what remains when the fact is gone."""
        rest = [token for turn in self.turns[self.fact_turn + 1 :] for token in turn]
        return rest[-most_tokens:] if most_tokens else []


def encode(tokenizer: Any, conversation: Conversation, answer_prefix: bool) -> Chat:
    """Turns are tokenized one by one (a template puts special tokens between them), so both ways to feed them agree.

    Raises Unsupported where the model's template rewrites earlier turns when a later one is added.
    """
    cuts = [render(tokenizer, conversation.turns[:count]) for count in range(1, len(conversation.turns) + 1)]
    asked = _asked(tokenizer, conversation.turns, conversation, answer_prefix)
    texts = [later.removeprefix(earlier) for earlier, later in zip(["", *cuts], [*cuts, asked], strict=True)]
    if any(not later.startswith(earlier) for earlier, later in zip(cuts, [*cuts[1:], asked], strict=True)):
        raise Unsupported(
            "this model's chat template rewrites earlier turns, so a cache cannot be carried across turns"
        )
    turns = [ids_of(tokenizer, text, first=number == 0) for number, text in enumerate(texts[:-1])]
    question = ids_of(tokenizer, texts[-1])
    before = sum(map(len, turns[: conversation.fact_turn]))
    return Chat(
        turns=turns,
        question=question,
        alternatives=continuations(tokenizer, texts[-1], conversation.alternatives),
        value_positions=[before + place for place in _places(tokenizer, texts, conversation)],
        fact_turn=conversation.fact_turn,
        opening_tokens=_opening_tokens(tokenizer, texts[0]),
    )


def render(tokenizer: Any, turns: Sequence[Turn], question: str | None = None, system: str | None = None) -> str:
    """The text of the turns (and of a question that waits for its answer); a transcript where no template exists.

    system: what comes first, in a role of its own; jinja2's TemplateError where the template has no such role.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    if question is not None:
        messages.append({"role": "user", "content": question})
    if tokenizer.chat_template is not None:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=question is not None)
    lines = [f"{message['role'].capitalize()}: {message['content']}\n" for message in messages]
    return "".join(lines) + ("Assistant:" if question is not None else "")


def question_alone(tokenizer: Any, conversation: Conversation, answer_prefix: bool) -> list[int]:
    """The question with nothing before it: what a model guesses without the conversation."""
    return ids_of(tokenizer, _asked(tokenizer, (), conversation, answer_prefix), first=True)


def _asked(tokenizer: Any, turns: Sequence[Turn], conversation: Conversation, answer_prefix: bool) -> str:
    """The turns, the question and, if wanted, the beginning of its answer."""
    text = render(tokenizer, turns, conversation.question)
    return text + joined(text, conversation.answer) if answer_prefix else text


def joined(text: str, more: str) -> str:
    """`more` as it follows `text`: a chat's answer begins on a new line, one that was begun goes on after a space."""
    return more if text[-1].isspace() else f" {more}"


def continuations(tokenizer: Any, text: str, values: Sequence[str]) -> list[list[int]]:
    """Ids of each value as it follows `text`."""
    before = len(ids_of(tokenizer, text))
    return [ids_of(tokenizer, text + joined(text, value))[before:] for value in values]


def ids_of(tokenizer: Any, text: str, first: bool = False) -> list[int]:
    """Ids of one piece; a beginning-of-text token only in front of the first, and not where the template writes it."""
    return tokenizer(text, add_special_tokens=first and tokenizer.chat_template is None).input_ids


def _places(tokenizer: Any, texts: list[str], conversation: Conversation) -> list[int]:
    """Indices, within the fact's turn, of the tokens that spell the value (in the statement and in its echo)."""
    text = texts[conversation.fact_turn]
    first = conversation.fact_turn == 0 and tokenizer.chat_template is None
    offsets = tokenizer(text, add_special_tokens=first, return_offsets_mapping=True).offset_mapping
    spans, start = [], text.find(conversation.statement)
    while start >= 0:
        end = start + len(conversation.statement)
        value = text.rindex(conversation.value, start, end)
        spans.append((value, value + len(conversation.value)))
        start = text.find(conversation.statement, end)
    return [
        index for index, (low, high) in enumerate(offsets) if any(low < end and high > start for start, end in spans)
    ]


def _opening_tokens(tokenizer: Any, text: str) -> int:
    """Tokens at the beginning of the first turn that stand before what is said, whatever that is."""
    one, other = (render(tokenizer, [(said, said)]) for said in ("a", "b"))
    opening = next(at for at, letters in enumerate(zip(one, other, strict=False)) if len(set(letters)) > 1)
    offsets = tokenizer(
        text, add_special_tokens=tokenizer.chat_template is None, return_offsets_mapping=True
    ).offset_mapping
    return sum(end <= opening for _, end in offsets)


class TurnCounter:
    """Exact token counts of conversations, turn by turn, without rendering the whole again for each added turn."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._counts: dict[Turn, int] = {}
        probe = ("a", "b")
        self._base = render(tokenizer, [probe])
        self._opening = len(ids_of(tokenizer, self._base, first=True)) - self._count(probe)

    def __call__(self, turns: Sequence[Turn]) -> int:
        """Tokens of the turns as a chat, with what the template puts first."""
        return self._opening + sum(map(self._count, turns))

    def _count(self, turn: Turn) -> int:
        if turn not in self._counts:
            text = render(self._tokenizer, [("a", "b"), turn]).removeprefix(self._base)
            self._counts[turn] = len(ids_of(self._tokenizer, text))
        return self._counts[turn]
