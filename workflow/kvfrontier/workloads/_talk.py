"""Chats with two facts as token ids, and the cache at each distance from them: carried along, or read anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvfrontier.workloads._chat import Chat, encode
from kvfrontier.workloads._conversation import Conversation
from kvfrontier.workloads._script import FACT_TURN, FACTS

if TYPE_CHECKING:
    from kvfrontier.engines.base import Notes, Sequences, Session
    from kvfrontier.strategies.base import Strategy

Way = Literal["persistent", "re_prefilled"]


@dataclass(frozen=True)
class Talk:
    """A chat and its number. told: by fact; chats: in tokens, with one more turn that asks for the fact and answers."""

    number: int
    told: tuple[Conversation, ...]
    chats: tuple[Chat, ...]

    @property
    def turns(self) -> list[list[int]]:
        """Of the chat alone."""
        return self.chats[0].turns[:-1]

    def answered(self, fact: int) -> list[int]:
        """The turn that asks for a fact and answers rightly."""
        return self.chats[fact].turns[-1]

    @property
    def tokens(self) -> int:
        """Of the chat alone."""
        return sum(map(len, self.turns))

    @property
    def later_tokens(self) -> int:
        """Of all questions that may follow, with their answers."""
        return sum(len(self.answered(fact)) + len(self.chats[fact].question) for fact in range(FACTS))

    @cached_property
    def notes(self) -> list[dict[str, list[float]]]:
        """What `cache/notes.py` calls `turns` and `oracle_span` (of all facts), by turn."""
        by_fact = (chat.notes_by_turn() for chat in self.chats)
        return [
            {kind: list(map(max, *(said[kind] for said in turn))) for kind in turn[0]}
            for turn in list(zip(*by_fact, strict=False))[: len(self.turns)]
        ]

    def after_facts(self, most_tokens: int) -> list[int]:
        """The turns after the facts', at most the last `most_tokens` of them: what remains when the facts are gone."""
        rest = [*chain.from_iterable(self.turns[FACT_TURN + 1 :])]
        return rest[-most_tokens:] if most_tokens else []


class Moment(NamedTuple):
    """A distance; the compressed cache there; and a copy of it after a turn that asked for a fact and was answered."""

    distance: int
    cache: Sequences
    after: Callable[[int], Sequences]


def talk(tokenizer: Any, number: int, told: Sequence[Conversation], answer_prefix: bool) -> Talk:
    """Raises Unsupported where the model's template rewrites earlier turns."""
    answered = ((one.question, f"{one.answer} {one.value}.") for one in told)
    longer = (replace(one, turns=(*one.turns, turn)) for one, turn in zip(told, answered, strict=True))
    return Talk(number, tuple(told), tuple(encode(tokenizer, one, answer_prefix) for one in longer))


def moments(
    way: Way, session: Session, strategy: Strategy, batch: Sequence[Talk], distances: Sequence[int], later: int
) -> Iterator[Moment]:
    """The batch at each distance, nearest first. later: tokens that are read or decoded after a chat, at most."""
    return _WAYS[way](session, strategy, batch, distances, later)


def _persistent(
    session: Session, strategy: Strategy, batch: Sequence[Talk], distances: Sequence[int], later: int
) -> Iterator[Moment]:
    cache = session.open(strategy)
    whole = max(one.tokens for one in batch)
    for number in range(FACT_TURN + max(distances) + 1):
        rows, notes = [one.turns[number] for one in batch], [one.notes[number] for one in batch]
        if number == 0:
            cache.prefill(rows, reserve_tokens=whole + later, notes=notes)
        else:
            cache.extend(rows, notes=notes)

        def after(fact: int, turn: int = number + 1) -> Sequences:
            asked = cache.fork()
            rows = [one.answered(fact) for one in batch]
            asked.extend(rows, notes=[_nothing_told(turn, row) for row in rows])
            return asked

        if number - FACT_TURN in distances:
            yield Moment(number - FACT_TURN, cache, after)


def _re_prefilled(
    session: Session, strategy: Strategy, batch: Sequence[Talk], distances: Sequence[int], later: int
) -> Iterator[Moment]:
    for distance in sorted(distances):
        turns = FACT_TURN + distance + 1

        def read(fact: int | None = None, turns: int = turns) -> Sequences:
            last = [[] if fact is None else one.answered(fact) for one in batch]
            rows = [[*chain.from_iterable(one.turns[:turns]), *more] for one, more in zip(batch, last, strict=True)]
            notes = [
                _joined([*one.notes[:turns], _nothing_told(turns, more)]) for one, more in zip(batch, last, strict=True)
            ]
            cache = session.open(strategy)
            cache.prefill(rows, reserve_tokens=later, notes=notes)
            return cache

        yield Moment(distance, read(), read)


_WAYS: Mapping[Way, Callable[..., Iterator[Moment]]] = {"persistent": _persistent, "re_prefilled": _re_prefilled}


def _nothing_told(turn: int, tokens: Sequence[int]) -> Notes:
    """Notes on a turn that tells none of the facts."""
    return {"turns": [float(turn)] * len(tokens), "oracle_span": [0.0] * len(tokens)}


def _joined(parts: Sequence[Notes]) -> Notes:
    return {kind: [*chain.from_iterable(part[kind] for part in parts)] for kind in parts[0]}
