"""Scripted chats that tell two facts in one turn and go on, so that both can be asked for at any later turn."""

from __future__ import annotations

import random
from itertools import islice

from kvfrontier.workloads._conversation import Conversation, Filler, filler_turns, state
from kvfrontier.workloads._facts import ATTRIBUTES, PEOPLE

FACTS = 2
FACT_TURN = 1
"""The second turn: sinks, which some strategies never evict, are in the first."""


def script(
    number: int, seed: int, turns_after: int, alternatives: int, distractors: int, filler: Filler
) -> tuple[Conversation, ...]:
    """Chat `number`: its turns, the same in all that is returned, and what to ask about each of its facts.

    turns_after: turns after the one that tells the facts; `distractors` turns tell facts of the same kinds about other
    people instead of filler. Facts are of different kinds and about different people.
    """
    choose = random.Random(f"multi-turn-{seed}-{number}")
    step = 1 + number // len(ATTRIBUTES) % (len(ATTRIBUTES) - 1)
    attributes = [ATTRIBUTES[(number + fact * step) % len(ATTRIBUTES)] for fact in range(FACTS)]
    people = choose.sample(PEOPLE, FACTS + distractors)
    values = [choose.sample(attribute.values, alternatives) for attribute in attributes]
    told = [choose.choice(offered) for offered in values]
    statements = [
        attribute.statement.format(person=person, value=value)
        for attribute, person, value in zip(attributes, people, told, strict=False)
    ]
    turns = list(islice(filler_turns(choose, filler, f"turns-{seed}-{number}"), FACT_TURN + turns_after))
    wrong: list[list[str]] = [[] for _ in range(FACTS)]
    for other, place in enumerate(choose.sample(range(len(turns)), distractors)):
        fact = other % FACTS
        value = choose.choice([value for value in values[fact] if value not in (told[fact], *wrong[fact])])
        wrong[fact].append(value)
        turns[place] = state(attributes[fact].statement.format(person=people[FACTS + other], value=value))
    turns.insert(FACT_TURN, state(" ".join(statements)))
    return tuple(
        Conversation(
            turns=tuple(turns),
            fact_turn=FACT_TURN,
            statement=statements[fact],
            value=told[fact],
            question=attributes[fact].question.format(person=people[fact]),
            answer=attributes[fact].answer.format(person=people[fact]),
            alternatives=tuple(values[fact]),
            distractors=tuple(wrong[fact]),
        )
        for fact in range(FACTS)
    )
