"""Words and numerals out of pieces as tokenizers write them, and what is read at once where surprisal is wanted."""

from __future__ import annotations

import pytest
from kvfrontier.engines._token_notes import NoteTaker, reading_spans

PIECES = ["<s>", "▁The", "▁room", "▁", "4", "1", "7", "a", ",", "ĠMr", ".", b"\xff", None, "</s>", "</s>", "Ġ²"]


class Pieces:
    all_special_ids = (0, 13)

    def convert_ids_to_tokens(self, token):
        return PIECES[token]


def taken(kinds, *pieces_of_text, told=()):
    taker, notes = NoteTaker(Pieces(), frozenset(kinds), {}), {}
    for number, ids in enumerate(pieces_of_text):
        taker.add(notes, ids, told[number] if told else {})
    return notes


def test_words_are_runs_of_one_kind_without_white_space():
    everything = list(range(len(PIECES)))
    words = [0, 1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 7, 7, 8, 9, 10]
    assert taken({"words"}, everything)["words"] == words
    assert taken({"words"}, everything[:6], everything[6:])["words"] == words, "a word may go on in the next call"
    numerals = [place for place, yes in enumerate(taken({"numerals"}, everything)["numerals"]) if yes]
    assert numerals == [4, 5, 6]


def test_nothing_is_noted_that_nobody_wants():
    assert taken({"attention_mass"}, [1, 2, 3]) == {}
    assert set(taken({"token_ids", "turns"}, [1, 2])) == {"token_ids", "turns"}


def test_what_is_told_is_told_of_every_token_or_of_none():
    unknown = float("-inf")
    told = ({"turns": [0, 1], "oracle_span": [1, 0]}, {})
    notes = taken({"turns", "surprisal"}, [1, 2], [3], told=told)
    assert notes == {"turns": [0, 1, unknown], "surprisal": [unknown] * 3}
    with pytest.raises(ValueError, match="1 notes on turns for 2 tokens"):
        taken({"turns"}, [1, 2], told=({"turns": [0]},))


@pytest.mark.parametrize(
    ("longest", "chunk", "surprised", "spans"),
    [
        (10, 10, False, [(0, 10)]),
        (10, 10, True, [(0, 9), (9, 10)]),
        (10, 4, False, [(0, 4), (4, 8), (8, 10)]),
        (10, 4, True, [(0, 4), (4, 8), (8, 9), (9, 10)]),
        (9, 4, True, [(0, 4), (4, 8), (8, 9)]),
        (1, 4, True, [(0, 1)]),
    ],
)
def test_the_last_token_comes_alone_where_surprisal_is_wanted(longest, chunk, surprised, spans):
    assert reading_spans(longest, chunk, surprised) == spans
