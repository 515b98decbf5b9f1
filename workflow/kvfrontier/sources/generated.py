"""A deterministic stream of plain English prose, for those who want no download."""

from __future__ import annotations

import random
from collections.abc import Iterator

PEOPLE = (
    "the baker", "Maria", "an old sailor", "the librarian", "Tomas", "the night nurse", "a young painter", "Ines",
    "the postman", "her brother", "the gardener", "Oskar", "a retired judge", "the ferry pilot", "Leila", "the mayor",
)  # fmt: skip
ACTIONS = (
    "repaired", "carried", "forgot", "described", "painted", "bought", "counted", "lost", "found", "hid", "sold",
    "studied", "borrowed", "photographed", "cleaned", "returned",
)  # fmt: skip
THINGS = (
    "a brass clock", "the green bicycle", "three letters", "a map of the coast", "the broken radio",
    "a basket of pears", "the guest book", "a wooden boat", "the spare key", "an umbrella", "a jar of honey",
    "the town records", "a pair of boots", "the old piano", "a telescope", "the winter coats",
)  # fmt: skip
PLACES = (
    "at the harbour", "in the market hall", "behind the school", "near the lighthouse", "on the night train",
    "in a small kitchen", "beside the river", "at the end of the street", "in the library", "on the hill",
    "under the bridge", "in the courtyard",
)  # fmt: skip
TIMES = (
    "On Monday morning", "After the storm", "Two weeks later", "Before sunrise", "During the festival",
    "That evening", "When the snow melted", "Late in the summer", "Shortly before noon", "At the end of the year",
)  # fmt: skip
REASONS = (
    "because nobody else had the time", "although it had rained all day", "so that the children could sleep",
    "while the others waited", "since the shop was closed", "as they had agreed the day before",
    "even though it was almost dark", "before anyone could object",
)  # fmt: skip


def paragraphs(seed: int, sentences: int = 60) -> Iterator[str]:
    """Endless documents of about 1,000 words; document `n` of a seed is the same wherever it is made."""
    number = 0
    while True:
        choose = random.Random(f"generated-{seed}-{number}")
        yield " ".join(sentence(choose) for _ in range(sentences))
        number += 1


def sentence(choose: random.Random) -> str:
    """One sentence: `After the storm, Maria sold the spare key near the lighthouse while the others waited.`"""
    time, person, action = choose.choice(TIMES), choose.choice(PEOPLE), choose.choice(ACTIONS)
    thing, place, reason = choose.choice(THINGS), choose.choice(PLACES), choose.choice(REASONS)
    return f"{time}, {person} {action} {thing} {place} {reason}."
