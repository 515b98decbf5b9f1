"""Needles: short statements that a long text hides, and what is asked of them. Same seed, same words, on any machine.

Text only: `_haystack.py` hides them and turns the whole into token ids. The kinds are RULER's (Hsieh et al. 2024,
arXiv:2404.06654) in wordings of our own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from string import ascii_uppercase
from typing import Literal

from kvfrontier.sources.text import documents

Kind = Literal["single", "multi_key", "multi_value", "multi_query", "variable_tracking"]
Filler = Literal["noise", "generated", "natural"]

KEYS = (
    "badger", "beaver", "bison", "buffalo", "camel", "cheetah", "cobra", "coyote", "crane", "dolphin", "falcon",
    "ferret", "gazelle", "giraffe", "gopher", "hamster", "hedgehog", "heron", "hyena", "iguana", "jackal", "jaguar",
    "kangaroo", "koala", "leopard", "lizard", "llama", "lobster", "magpie", "mongoose", "ostrich", "otter", "panther",
    "parrot", "pelican", "penguin", "raccoon", "salmon", "spider", "walrus", "weasel", "zebra",
)  # fmt: skip
NOISE = (
    "The road is long.", "The water is cold.", "The night is quiet.", "We walk on.", "Then we come back again.",
)  # fmt: skip
NAME_LETTERS = 5


@dataclass(frozen=True)
class Needle:
    """A statement; `answer`: what of it must be said when it is asked for, where it stands last in `sentence`."""

    sentence: str
    answer: str


@dataclass(frozen=True)
class Hunt:
    """What one text hides, without the text. Where the needles that are asked for lie is up to whoever hides them."""

    asked: tuple[Needle, ...]
    others: tuple[tuple[float, Needle], ...]  # of other keys, with their depths
    question: str
    beginning: str  # of the answer, up to the first thing that must be said
    alternatives: tuple[str, ...] = ()  # the answer among them; where only one thing is asked for
    chained: bool = False  # each needle asked for speaks of the one before: their order is kept

    @property
    def words(self) -> frozenset[str]:
        """What no other sentence of the text may say, in lower case."""
        needles = [*self.asked, *(needle for _, needle in self.others)]
        keys = {key for key in KEYS for needle in needles if f" {key} " in needle.sentence}
        said = {needle.answer for needle in needles}
        return frozenset(word.lower() for word in said | keys | set(self.alternatives))

    def hidden(self, depths: Sequence[float], shift: int) -> list[tuple[float, Needle]]:
        """All needles with the depths where they lie, those asked for first: from the `shift`-th of `depths` on, each
        at the next of them; a chain starts there and goes on to the end in even steps.

        So every needle comes to every depth once, as `shift` goes through `depths`.
        """
        count, start = len(self.asked), depths[shift]
        if self.chained:
            places = [start + (1 - start) * number / count for number in range(count)]
        else:
            places = [depths[(shift + number) % len(depths)] for number in range(count)]
        return [*zip(places, self.asked, strict=True), *self.others]

    def phases(self, depths: Sequence[float], shift: int) -> list[float]:
        """The depth that each needle asked for is counted under: its own, or where its chain starts."""
        if self.chained:
            return [depths[shift]] * len(self.asked)
        return [depth for depth, _ in self.hidden(depths, shift)[: len(self.asked)]]


def hunt(kind: Kind, number: int, seed: int, needles: int, digits: int, alternatives: int) -> Hunt:
    """Hunt `number` of a kind. needles: keys, values, queries or hops; digits: of each value; alternatives: to choose
    from, where one thing is asked for."""
    return _KINDS[kind](random.Random(f"needle-{kind}-{seed}-{number}"), needles, digits, alternatives)


def sentences(filler: Filler, key: str, avoid: frozenset[str]) -> Iterator[str]:
    """What the needles lie in: five short sentences over and over, generated prose, or natural texts sentence by
    sentence. Whatever says one of the words to `avoid` (in lower case) is left out. Natural texts end.
    """
    return (said for said in _said(filler, key) if not any(word in said.lower() for word in avoid))


def _said(filler: Filler, key: str) -> Iterator[str]:
    if filler == "noise":
        yield from cycle(NOISE)
        return
    for document in documents(filler, random.Random(f"haystack-{key}").randrange(2**31)):
        yield from filter(None, re.split(r"(?<=[.!?])\s+", document.strip()))


def _one_of_keys(choose: random.Random, needles: int, digits: int, alternatives: int) -> Hunt:
    """Several keys, each with a value of its own; one of them is asked for."""
    keys = choose.sample(KEYS, needles)
    values = _numbers(choose, max(needles, alternatives), digits)
    told = [_of_key(key, value) for key, value in zip(keys, values, strict=False)]
    offered = values[:alternatives]
    choose.shuffle(offered)
    return Hunt(
        asked=(told[0],),
        others=tuple((choose.random(), needle) for needle in told[1:]),
        question=f"What is the secret number of the {keys[0]}?",
        beginning=f"The secret number of the {keys[0]} is",
        alternatives=tuple(offered),
    )


def _single(choose: random.Random, needles: int, digits: int, alternatives: int) -> Hunt:
    return _one_of_keys(choose, 1, digits, alternatives)


def _multi_value(choose: random.Random, needles: int, digits: int, alternatives: int) -> Hunt:
    """One key with several values, all of which are asked for."""
    key = choose.choice(KEYS)
    return Hunt(
        asked=tuple(_of_key(key, value) for value in _numbers(choose, needles, digits)),
        others=(),
        question=f"The {key} has {needles} secret numbers. What are all of them?",
        beginning=f"The secret numbers of the {key} are",
    )


def _multi_query(choose: random.Random, needles: int, digits: int, alternatives: int) -> Hunt:
    """Several keys, all of which are asked for."""
    keys = choose.sample(KEYS, needles)
    every = _listed([f"the {key}" for key in keys])
    return Hunt(
        asked=tuple(_of_key(*pair) for pair in zip(keys, _numbers(choose, needles, digits), strict=True)),
        others=(),
        question=f"What are the secret numbers of {every}?",
        beginning=f"The secret numbers of {every} are",
    )


def _variable_tracking(choose: random.Random, needles: int, digits: int, alternatives: int) -> Hunt:
    """A variable with a value, and `needles` more, each set to the one before; all names are asked for by the value."""
    names: list[str] = []
    while len(names) <= needles:
        name = "".join(choose.choices(ascii_uppercase, k=NAME_LETTERS))
        if name not in names:
            names.append(name)
    (value,) = _numbers(choose, 1, digits)
    first = Needle(f"{value} is the value of variable {names[0]}.", names[0])
    hops = (Needle(f"The value of {old} is also given to variable {new}.", new) for old, new in pairwise(names))
    return Hunt(
        asked=(first, *hops),
        others=(),
        question=f"Which {len(names)} variables have the value {value}? Name all of them.",
        beginning=f"The variables with the value {value} are",
        chained=True,
    )


_KINDS: dict[Kind, Callable[[random.Random, int, int, int], Hunt]] = {
    "single": _single,
    "multi_key": _one_of_keys,
    "multi_value": _multi_value,
    "multi_query": _multi_query,
    "variable_tracking": _variable_tracking,
}


def _of_key(key: str, value: str) -> Needle:
    return Needle(f"The secret number of the {key} is {value}.", value)


def _numbers(choose: random.Random, count: int, digits: int) -> list[str]:
    """Different numbers of one length: none is part of another."""
    return [str(number) for number in choose.sample(range(10 ** (digits - 1), 10**digits), count)]


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
