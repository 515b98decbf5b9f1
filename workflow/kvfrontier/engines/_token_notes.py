"""Notes on tokens that an engine makes itself: ids, words and numerals from the tokenizer, surprisal from logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from kvfrontier.cache.notes import OF_ENGINE, OF_WORKLOAD, UNKNOWN, RowNotes
from kvfrontier.cache.precise import precise
from kvfrontier.errors import Unsupported

SURPRISAL_CHUNK = 256
"""Tokens that are read at once where surprisal is wanted: of each row, so many logits over the vocabulary are held."""
_SPACE = "\u0120\u010a\u2581 \n\t"  # how tokenizers write white space in front of a word
_SPECIAL, _WORD, _OTHER = range(3)


class NoteTaker:
    """Writes the notes that a strategy requires. `memo`: kinds of pieces by id, kept for a session."""

    def __init__(self, tokenizer: Any, wanted: frozenset[str], memo: dict[int, tuple[int, bool, bool]]):
        self._tokenizer, self._memo = tokenizer, memo
        self.wanted = wanted & (OF_ENGINE | OF_WORKLOAD)
        if tokenizer is None and self.wanted & {"words", "numerals"}:
            raise Unsupported("words and numerals are read from a tokenizer, and this session has none")

    def add(self, notes: RowNotes, tokens: Sequence[int], told: Mapping[str, Sequence[float]]) -> None:
        """Note a row's further tokens; told: what the workload says of them."""
        ids = [int(token) for token in tokens] if self.wanted else []
        for kind in self.wanted & (OF_WORKLOAD | {"surprisal"}):
            said = list(told.get(kind, ())) or [UNKNOWN] * len(ids)
            if len(said) != len(ids):
                raise ValueError(f"{len(said)} notes on {kind} for {len(ids)} tokens")
            notes.setdefault(kind, []).extend(said)
        if "token_ids" in self.wanted:
            notes.setdefault("token_ids", []).extend(ids)
        if "numerals" in self.wanted:
            notes.setdefault("numerals", []).extend(float(self._piece(token)[2]) for token in ids)
        if "words" in self.wanted:
            self._add_words(notes, ids)

    def _add_words(self, notes: RowNotes, ids: Sequence[int]) -> None:
        """A word goes on while pieces of one kind follow each other without white space."""
        words, kinds = notes.setdefault("words", []), notes.setdefault("kinds", [])
        for token in ids:
            kind, begins, _ = self._piece(token)
            goes_on = words and not begins and kind == kinds[-1] and kind != _SPECIAL
            words.append(words[-1] if goes_on else (words[-1] + 1 if words else 0))
            kinds.append(kind)

    def _piece(self, token: int) -> tuple[int, bool, bool]:
        """(kind, whether white space goes before it, whether it has a digit)."""
        if token not in self._memo:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            piece = piece.decode(errors="replace") if isinstance(piece, bytes) else piece or ""
            rest = piece.lstrip(_SPACE)
            special = token in self._tokenizer.all_special_ids
            kind = _SPECIAL if special else _WORD if any(map(str.isalnum, rest)) else _OTHER
            digit = not special and any("0" <= letter <= "9" for letter in rest)
            self._memo[token] = (kind, rest != piece, digit)
        return self._memo[token]


def note_surprisal(
    notes: Sequence[RowNotes], logits: Tensor, ids: Tensor, first: Sequence[int], lengths: Sequence[int], start: int
) -> None:
    """Note what each row's next tokens cost: logits `[batch, chunk, vocab]` of the columns of `ids` from `start` on.

    ids: `[batch, longest]`, of row b the first `lengths[b]`; first: the position of each row's first column.
    """
    for row, length in enumerate(lengths):
        count = min(logits.shape[1], length - 1 - start)
        if count <= 0:
            continue
        nats = F.cross_entropy(precise(logits[row, :count]), ids[row, start + 1 : start + 1 + count], reduction="none")
        place = first[row] + start + 1
        notes[row]["surprisal"][place : place + count] = nats.tolist()


def reading_spans(longest: int, chunk: int, surprised: bool) -> list[tuple[int, int]]:
    """What each call reads of `longest` tokens. Where surprisal is wanted the last token comes alone.

    Layers evict before the call's own logits exist, and all that came before the last token is then known.
    """
    stops = {*range(chunk, longest, chunk), longest, *([longest - 1] if surprised and longest > 1 else [])}
    return list(pairwise([0, *sorted(stops)]))
