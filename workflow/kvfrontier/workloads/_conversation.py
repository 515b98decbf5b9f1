"""Scripted multi-turn chats that hold one fact to be asked for later. Same seed, same words, on any machine.

Text only: `_chat.py` turns it into token ids.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

from kvfrontier.sources.text import documents
from kvfrontier.workloads._facts import ACKNOWLEDGEMENT, ATTRIBUTES, PEOPLE, REQUEST, SMALL_TALK

Turn = tuple[str, str]  # what the user says, what the assistant answers
Filler = Literal["templated", "natural"]

PASSAGE_CHARACTERS = 400


@dataclass(frozen=True)
class Conversation:
    """One item: the turns before the question, where the fact is, and what may be answered."""

    turns: tuple[Turn, ...]
    fact_turn: int
    statement: str
    value: str
    question: str
    answer: str  # the beginning of the answer, up to the value
    alternatives: tuple[str, ...]  # the value among them
    distractors: tuple[str, ...]  # values of other people

    @property
    def right(self) -> int:
        """The place of the value among the alternatives."""
        return self.alternatives.index(self.value)


def converse(
    number: int,
    depth: float,
    seed: int,
    fits: Callable[[list[Turn]], bool],
    alternatives: int,
    distractors: int,
    filler: Filler,
) -> Conversation:
    """Conversation `number` with its fact at `depth` (0: first turn, 1: last) of as many filler turns as `fits` allows.

    Fact, alternatives and filler depend on `seed` and `number` only: the depths of one number differ in nothing else.
    """
    choose = random.Random(f"retention-{seed}-{number}")
    attribute = ATTRIBUTES[number % len(ATTRIBUTES)]
    values = choose.sample(attribute.values, alternatives)
    value = choose.choice(values)
    person, *others = choose.sample(PEOPLE, 1 + distractors)
    wrong = choose.sample([other for other in values if other != value], distractors)
    statements = [attribute.statement.format(person=name, value=said) for name, said in zip(others, wrong, strict=True)]
    fact = attribute.statement.format(person=person, value=value)
    fixed = [state(fact), *map(state, statements)]
    talk: list[Turn] = []
    for turn in filler_turns(choose, filler, f"{seed}-{number}"):
        if not fits([*fixed, *talk, turn]):
            break
        talk.append(turn)
    turns = list(talk)
    for statement in statements:
        turns.insert(choose.randint(0, len(turns)), state(statement))
    position = round(depth * len(turns))
    turns.insert(position, state(fact))
    return Conversation(
        turns=tuple(turns),
        fact_turn=position,
        statement=fact,
        value=value,
        question=attribute.question.format(person=person),
        answer=attribute.answer.format(person=person),
        alternatives=tuple(values),
        distractors=tuple(wrong),
    )


def state(statement: str) -> Turn:
    """The turn that tells a fact: asked to be remembered, and repeated in the answer."""
    return REQUEST.format(statement=statement), ACKNOWLEDGEMENT.format(statement=statement)


def filler_turns(choose: random.Random, kind: Filler, key: str) -> Iterator[Turn]:
    """Endless turns: small talk in a random order, or passages of natural text."""
    if kind == "templated":
        return cycle(choose.sample(SMALL_TALK, len(SMALL_TALK)))
    return _passages(key)


def _passages(key: str) -> Iterator[Turn]:
    for document in documents("natural", random.Random(f"filler-{key}").randrange(2**31)):
        passage = document[:PASSAGE_CHARACTERS].rsplit(" ", 1)[0].strip()
        yield f"Here is something I am reading: {passage} ...", "Thank you for sharing this. It sounds interesting."
