"""Which tokens of a row are anchors, and in which order they are taken while there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal
from zlib import crc32

from kvfrontier.cache.notes import UNKNOWN

Kind = Literal[
    "sinks", "system_prompt", "early_turns", "surprisal", "numerals", "rare_tokens", "oracle_span", "random", "boundary"
]
NOTES: dict[str, str] = {
    "system_prompt": "turns",
    "early_turns": "turns",
    "surprisal": "surprisal",
    "numerals": "numerals",
    "rare_tokens": "token_ids",
    "oracle_span": "oracle_span",
}
"""What a kind must be told; the others need positions alone."""
SPANS = frozenset({"surprisal", "numerals", "rare_tokens", "random"})
"""Kinds whose tokens are grown to words and neighbours: a fact is a span, and so must be its random control."""


@dataclass(frozen=True)
class Row:
    """One row when a reading, or a chunk of one, has ended: tokens seen so far, its notes, its own random number."""

    tokens: int
    notes: Mapping[str, Sequence[float]]
    key: str


def ranked(row: Row, settings: Any) -> list[int]:
    """Anchor positions in the order in which they are taken, each once; settings: an `Anchors`."""
    order: dict[int, None] = {}
    words = _Words(row, settings.whole_words)
    for kind in settings.protect:
        for position in _CANDIDATES[kind](row, settings):
            grown = words.around(position, settings.neighbours) if kind in SPANS else (position,)
            order.update(dict.fromkeys((position, *grown)))
    return list(order)


class _Words:
    """Bounds of words in a row."""

    def __init__(self, row: Row, whole: bool):
        self._tokens, self._words = row.tokens, row.notes.get("words") if whole else None

    def around(self, position: int, neighbours: int) -> range:
        """The word of a token, and so many tokens before and after it."""
        first = last = position
        if self._words is not None:
            while first > 0 and self._words[first - 1] == self._words[position]:
                first -= 1
            while last + 1 < self._tokens and self._words[last + 1] == self._words[position]:
                last += 1
        return range(max(0, first - neighbours), min(self._tokens, last + neighbours + 1))


def _top(row: Row, settings: Any, worth: Callable[[int], Any], among: Iterable[int]) -> list[int]:
    """The best `top_share` of all tokens, best first; equal ones: the first."""
    return sorted(among, key=lambda at: (worth(at), at))[: ceil(settings.top_share * row.tokens)]


def _sinks(row: Row, settings: Any) -> Iterable[int]:
    return range(min(settings.sinks, row.tokens))


def _system_prompt(row: Row, settings: Any) -> Iterable[int]:
    return (at for at in range(row.tokens) if row.notes["turns"][at] == -1)


def _early_turns(row: Row, settings: Any) -> Iterable[int]:
    return (at for at in range(row.tokens) if 0 <= row.notes["turns"][at] < settings.early_turns)


def _surprisal(row: Row, settings: Any) -> Iterable[int]:
    nats = row.notes["surprisal"]
    return _top(row, settings, lambda at: -nats[at], (at for at in range(row.tokens) if nats[at] > UNKNOWN))


def _numerals(row: Row, settings: Any) -> Iterable[int]:
    return (at for at in range(row.tokens) if row.notes["numerals"][at] > 0)


def _rare_tokens(row: Row, settings: Any) -> Iterable[int]:
    """Fewest occurrences in the row first; among equals the largest id, which a tokenizer has merged last."""
    ids = row.notes["token_ids"][: row.tokens]
    times = Counter(ids)
    return _top(row, settings, lambda at: (times[ids[at]], -ids[at]), range(row.tokens))


def _oracle_span(row: Row, settings: Any) -> Iterable[int]:
    return (at for at in range(row.tokens) if row.notes["oracle_span"][at] > 0)


def _random(row: Row, settings: Any) -> Iterable[int]:
    return sorted(range(row.tokens), key=lambda at: (crc32(f"{settings.seed} {row.key} {at}".encode()), at))


def _boundary(row: Row, settings: Any) -> Iterable[int]:
    """From both ends inwards."""
    for at in range((row.tokens + 1) // 2):
        yield at
        yield row.tokens - 1 - at


_CANDIDATES: dict[str, Callable[[Row, Any], Iterable[int]]] = {
    "sinks": _sinks,
    "system_prompt": _system_prompt,
    "early_turns": _early_turns,
    "surprisal": _surprisal,
    "numerals": _numerals,
    "rare_tokens": _rare_tokens,
    "oracle_span": _oracle_span,
    "random": _random,
    "boundary": _boundary,
}
