"""Needles and the texts that hide them: the same everywhere, of exact length, in their places, told apart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import combinations, islice

import pytest
from kvfrontier.errors import Unsupported
from kvfrontier.models.loader import locate
from kvfrontier.sources import generated
from kvfrontier.workloads._choice import contains_value
from kvfrontier.workloads._haystack import INTRODUCTION, hide
from kvfrontier.workloads._needles import KEYS, NOISE, hunt, sentences
from packaged_model import packaged_model
from toy_tokenizer import toy_tokenizer

KINDS = ("single", "multi_key", "multi_value", "multi_query", "variable_tracking")
DEPTHS = (0.0, 0.5, 1.0)
MERGES = (("T", "h"), ("Th", "e"), ("Ġ", "i"), ("Ġi", "s"), (".", "Ġ"), (".Ġ", "The"))
"""Pieces that reach over spaces and ends of sentences: what a sentence takes then depends on what follows it."""


def made(kind, number=0, seed=0, needles=3, digits=4, alternatives=10):
    return hunt(kind, number, seed, needles, digits, alternatives)


def lay(kind, tokens, shift=0, tokenizer=None, filler="noise", prefix=True, **settings):
    one = made(kind, **settings)
    said = sentences(filler, "0-0", one.words)
    return one, hide(tokenizer or toy_tokenizer(), one, one.hidden(DEPTHS, shift), said, tokens, prefix)


PROGRAM = """
from itertools import islice
from kvfrontier.workloads._needles import hunt, sentences
for kind in {kinds}:
    one = hunt(kind, 3, 1, 3, 4, 10)
    print(one.hidden((0.0, 0.5, 1.0), 1), one.question, one.beginning, one.alternatives)
    print(list(islice(sentences("generated", "1-3", one.words), 5)))
"""


def test_processes_with_other_hash_seeds_hide_the_same():
    program = PROGRAM.format(kinds=KINDS)
    told = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", program]
        told.add(subprocess.run(run, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(told) == 1 and len(told.pop()) > 1000


def test_a_hunt_is_the_same_on_every_machine():
    one = made("single")
    assert one.asked[0].sentence == "The secret number of the jaguar is 5599.", (
        "changed needles change every measurement of `needle`"
    )
    assert one.question == "What is the secret number of the jaguar?"
    assert one.beginning == "The secret number of the jaguar is"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(20))
def test_no_answer_is_part_of_another_or_said_by_anything_else(kind, number):
    one = made(kind, number, needles=8, digits=3, alternatives=24)
    answers = [needle.answer for needle in one.asked] + [needle.answer for _, needle in one.others]
    offered = sorted({*answers, *one.alternatives})
    assert len(set(answers)) == len(answers) and not [(a, b) for a, b in combinations(offered, 2) if a in b or b in a]
    needles = [*one.asked, *(needle for _, needle in one.others)]
    for needle in needles:
        said_by = [other for other in needles if needle.answer in other.sentence]
        assert said_by[0] == needle and (one.chained or len(said_by) == 1)
    for filler in ("noise", "generated"):
        text = " ".join(islice(sentences(filler, "0-0", one.words), 200))
        assert not [answer for answer in offered if answer.lower() in text.lower()]
    assert not [answer for answer in answers if contains_value(f"{one.question} {one.beginning}", answer, ())]


def test_keys_are_told_apart_and_no_filler_says_them():
    assert len(set(KEYS)) == len(KEYS)
    assert not [pair for pair in combinations(KEYS, 2) if pair[0] in pair[1] or pair[1] in pair[0]]
    lists = (
        generated.PEOPLE,
        generated.ACTIONS,
        generated.THINGS,
        generated.PLACES,
        generated.TIMES,
        generated.REASONS,
    )
    filler = " ".join([*NOISE, *(word for words in lists for word in words)]).lower()
    assert not [key for key in KEYS if key in filler]


def test_sentences_that_say_a_word_to_avoid_are_left_out():
    said = list(islice(sentences("noise", "", frozenset({"road", "quiet"})), 6))
    assert said == 2 * ["The water is cold.", "We walk on.", "Then we come back again."]


def test_natural_texts_come_in_sentences(monkeypatch):
    from kvfrontier.workloads import _needles

    texts = ["One. Two!\n\nThe badger 4821? ", "\nFour\nwith a break."]
    monkeypatch.setattr(_needles, "documents", lambda kind, seed: iter(texts))
    assert list(sentences("natural", "0", frozenset({"4821"}))) == ["One.", "Two!", "Four\nwith a break."]
    one = made("single")
    with pytest.raises(Unsupported, match=r"the texts end after \d+ of \d+ tokens: use another `filler`"):
        hide(toy_tokenizer(), one, one.hidden((0.5,), 0), sentences("natural", "0", one.words), 4000, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", range(len(DEPTHS)))
def test_needles_lie_at_their_depths(kind, shift):
    one, haystack = lay(kind, 3000, shift)
    text = toy_tokenizer().decode(haystack.text)
    body = text.split(f"{INTRODUCTION}\n\n")[1]
    assert len(haystack.text) == 3000
    for depth, needle in one.hidden(DEPTHS, shift):
        assert body.count(needle.sentence) == 1
        assert body.index(needle.sentence) / len(body) == pytest.approx(depth, abs=0.12)
    for needle, places in zip(one.asked, haystack.places, strict=True):
        assert toy_tokenizer().decode([haystack.text[place] for place in places]).strip() == needle.answer


@pytest.mark.parametrize("kind", ["multi_value", "multi_query"])
def test_each_needle_comes_to_each_depth_once(kind):
    one = made(kind, needles=5)
    places = {(turn, depth) for shift in range(3) for turn, depth in enumerate(one.phases(DEPTHS, shift))}
    assert len(places) == 5 * 3
    for shift in range(3):
        assert [depth for depth, _ in one.hidden(DEPTHS, shift)] == one.phases(DEPTHS, shift)


def test_a_chain_is_told_in_order_from_its_start_on():
    one = made("variable_tracking", needles=4)
    assert one.phases(DEPTHS, 1) == [0.5] * 5
    assert [depth for depth, _ in one.hidden(DEPTHS, 1)] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    for shift in range(3):
        _, haystack = lay("variable_tracking", 2000, shift, needles=4)
        assert [places[0] for places in haystack.places] == sorted(places[0] for places in haystack.places)
    for old, new in zip(one.asked, one.asked[1:], strict=False):
        assert f"of {old.answer} is also given to variable {new.answer}" in new.sentence
    assert re.match(r"\d{4} is the value of", one.asked[0].sentence)


def test_depths_of_one_number_differ_in_nothing_but_the_place():
    (first, early), (second, late) = (lay("multi_key", 1000, shift) for shift in (0, 2))
    assert first == second and early.question == late.question and early.alternatives == late.alternatives
    without = [toy_tokenizer().decode(one.text).replace(f"{first.asked[0].sentence} ", "") for one in (early, late)]
    assert without[0][:900] == without[1][:900]


@pytest.mark.parametrize("merges", [(), MERGES], ids=["bytes", "merged"])
@pytest.mark.parametrize("tokens", range(380, 420))
def test_texts_have_exactly_the_asked_length(tokens, merges):
    tokenizer = toy_tokenizer(merges=merges)
    one, haystack = lay("multi_key", tokens, shift=2, tokenizer=tokenizer)
    assert len(haystack.text) == tokens
    text = tokenizer.decode(haystack.text)
    assert all(needle.sentence in text for _, needle in one.hidden(DEPTHS, 2))


def test_a_text_without_room_for_its_needles_is_unsupported():
    with pytest.raises(Unsupported, match=r"context_tokens 180: needles and what stands before them take \d+ tokens"):
        lay("multi_key", 180)
    with pytest.raises(Unsupported, match="context_tokens 50"):
        lay("single", 50)


@pytest.mark.parametrize("template", ["chat", "none"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kind", ["multi_key", "multi_query"])
def test_question_and_answer_are_said_in_the_models_own_form(template, prefix, kind):
    tokenizer = toy_tokenizer() if template == "chat" else toy_tokenizer(None)
    one, haystack = lay(kind, 800, tokenizer=tokenizer, prefix=prefix)
    opening = "<|im_start|>user\n" if template == "chat" else "User: "
    closing = "<|im_end|>\n<|im_start|>assistant\n" if template == "chat" else "\nAssistant:"
    begun = ("" if template == "chat" else " ") + one.beginning if prefix else ""
    assert tokenizer.decode(haystack.text).startswith(opening + INTRODUCTION)
    assert tokenizer.decode(haystack.question) == f"\n\n{one.question}{closing}"
    assert tokenizer.decode(haystack.beginning) == begun
    assert tokenizer.decode(haystack.alone) == opening + one.question + closing + begun
    space = "" if template == "chat" and not prefix else " "
    offered = [tokenizer.decode(tokens) for tokens in haystack.alternatives]
    assert offered == [f"{space}{value}" for value in one.alternatives]
    assert len(offered) == (10 if kind == "multi_key" else 0)
    assert kind != "multi_key" or one.asked[0].answer in one.alternatives


@pytest.mark.parametrize("prefix", [True, False])
def test_what_is_read_before_the_compression(prefix):
    _, haystack = lay("single", 500, prefix=prefix)
    whole = haystack.text + haystack.question + haystack.beginning
    for seen in (False, True):
        before, after = haystack.split(seen)
        assert before + after == whole and after
    assert haystack.split(False)[0] == haystack.text
    assert haystack.split(True)[1] == (haystack.beginning or haystack.question[-1:])


@pytest.mark.model
@pytest.mark.parametrize("filler", ["noise", "generated", "natural"])
def test_the_real_tokenizer_gives_exact_lengths(filler):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(locate(packaged_model()))
    for tokens in (256, 1000, 4096):
        one, haystack = lay("multi_key", tokens, shift=1, tokenizer=tokenizer, filler=filler)
        assert len(haystack.text) == tokens
        whole = tokenizer.decode(haystack.text + haystack.question + haystack.beginning)
        again = tokenizer(whole, add_special_tokens=False).input_ids
        assert again[: tokens - 3] == haystack.text[:-3], "as the text itself would be read, but for where it is cut"
        assert tokenizer.decode([haystack.text[place] for place in haystack.places[0]]).strip() == one.asked[0].answer
