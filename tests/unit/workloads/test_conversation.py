"""Scripted chats, their tokens, and how answers are judged."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations

import pytest
import torch
from kvfrontier.errors import Unsupported
from kvfrontier.models.loader import locate
from kvfrontier.workloads._chat import TurnCounter, encode, question_alone, render
from kvfrontier.workloads._choice import contains_value, score_alternatives
from kvfrontier.workloads._conversation import converse
from kvfrontier.workloads._facts import ATTRIBUTES, PEOPLE, SMALL_TALK
from packaged_model import packaged_model
from toy_tokenizer import TEMPLATE, toy_tokenizer


def talk(number=0, depth=0.0, seed=0, turns=8, alternatives=20, distractors=0):
    return converse(number, depth, seed, lambda said: len(said) <= turns, alternatives, distractors, "templated")


def test_a_conversation_is_the_same_on_every_machine():
    conversation = talk()
    assert conversation.statement == "Helena's dog is called Milo."
    assert conversation.turns[0] == (
        "Please remember this: Helena's dog is called Milo.", "I will remember it: Helena's dog is called Milo.",
    )  # fmt: skip
    assert conversation == talk()


def test_depths_of_one_number_differ_in_the_place_of_the_fact_only():
    early, middle, late = (talk(depth=depth) for depth in (0.0, 0.5, 1.0))
    assert Counter(early.turns) == Counter(middle.turns) == Counter(late.turns)
    assert [item.fact_turn for item in (early, middle, late)] == [0, 4, 7]
    assert all(item.statement in item.turns[item.fact_turn][0] for item in (early, middle, late))


def test_facts_differ_between_numbers_and_seeds():
    assert len({talk(number, seed=seed).statement for number in range(10) for seed in range(3)}) > 20


def test_distractors_state_other_values_for_other_people():
    conversation = talk(distractors=3)
    stated = [turn[0] for turn in conversation.turns if turn[0].startswith("Please remember")]
    assert len(stated) == 4
    assert conversation.value not in conversation.distractors
    assert set(conversation.distractors) < set(conversation.alternatives)


def test_no_value_can_be_mistaken_for_another_or_is_said_by_the_filler():
    for attribute in ATTRIBUTES:
        assert len(set(attribute.values)) == 24
        assert not [pair for pair in combinations(attribute.values, 2) if contains_value(*pair, ())]
        for value in attribute.values:
            assert not [turn for turn in SMALL_TALK if contains_value(" ".join(turn), value, ())]
    values = {value for attribute in ATTRIBUTES for value in attribute.values}
    assert not values & set(PEOPLE)


@pytest.mark.parametrize("template", ["chat", "none"])
@pytest.mark.parametrize("answer_prefix", [True, False])
def test_a_chat_says_what_the_conversation_says(template, answer_prefix):
    tokenizer = toy_tokenizer() if template == "chat" else toy_tokenizer(None)
    conversation = talk(depth=0.5, turns=4)
    chat = encode(tokenizer, conversation, answer_prefix)
    text = tokenizer.decode(chat.history + chat.question)
    whole = render(tokenizer, conversation.turns, conversation.question)
    assert text.startswith(whole)
    assert text.removeprefix(whole).strip() == (conversation.answer if answer_prefix else "")
    for value, tokens in zip(conversation.alternatives, chat.alternatives, strict=True):
        assert tokenizer.decode(tokens) == (f" {value}" if answer_prefix or template == "none" else value)
    said = tokenizer.decode([chat.history[place] for place in chat.value_positions])
    assert said.replace(" ", "") == 2 * conversation.value
    assert tokenizer.decode(question_alone(tokenizer, conversation, answer_prefix)) in text


def test_turn_counts_are_exact():
    tokenizer, conversation = toy_tokenizer(), talk(turns=5)
    chat = encode(tokenizer, conversation, True)
    assert TurnCounter(tokenizer)(conversation.turns) == len(chat.history)


def test_what_follows_the_fact_leaves_the_fact_out():
    tokenizer, conversation = toy_tokenizer(), talk(depth=0.5, turns=5)
    chat = encode(tokenizer, conversation, True)
    after = tokenizer.decode(chat.after_fact(10_000))
    assert conversation.value not in after
    assert after == tokenizer.decode(chat.history[-len(chat.after_fact(10_000)) :])
    assert len(chat.after_fact(7)) == 7
    assert encode(tokenizer, talk(depth=1.0, turns=5), True).after_fact(100) == []


def test_a_template_that_rewrites_earlier_turns_is_unsupported():
    rewriting = toy_tokenizer("{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(Unsupported, match="rewrites earlier turns"):
        encode(rewriting, talk(), True)


@pytest.mark.model
def test_the_real_tokenizer_agrees_with_itself_turn_by_turn():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(locate(packaged_model()))
    for number in range(5):
        conversation = talk(number, depth=0.5)
        chat = encode(tokenizer, conversation, True)
        whole = render(tokenizer, conversation.turns, conversation.question) + conversation.answer
        assert chat.history + chat.question == tokenizer(whole, add_special_tokens=False).input_ids
        assert (
            re.sub(r"\W", "", tokenizer.decode([chat.history[p] for p in chat.value_positions]))
            == 2 * conversation.value
        )
        assert TurnCounter(tokenizer)(conversation.turns) == len(chat.history)


class Distribution:
    """Stands for a cache after a question: the next-token logits depend on the tokens fed so far."""

    def __init__(self, fed=((), ())):
        self.fed, self.extensions = list(fed), [0]

    def logits(self):
        return torch.stack(
            [torch.randn(50, generator=torch.Generator().manual_seed(hash(fed) % 2**31)) for fed in self.fed]
        )

    def fork(self):
        copy = Distribution(self.fed)
        copy.extensions = self.extensions
        return copy

    def decode(self, tokens):
        return self.extend([[token] for token in tokens])

    def extend(self, tokens):
        self.extensions[0] += 1
        self.fed = [old + tuple(new) for old, new in zip(self.fed, tokens, strict=True)]
        return self.logits()


def test_alternatives_are_scored_up_to_where_they_differ():
    asked = Distribution()
    rows = [[(1, 2, 3), (1, 2, 4, 9), (1, 5), (6, 7)], [(8, 1), (9, 1), (10, 1), (11, 1)]]

    def log_probability(tokens):
        total = 0.0
        for length in range(len(tokens)):
            total += float(Distribution([tokens[:length]]).logits()[0].log_softmax(-1)[tokens[length]])
        return total

    distinct = [[(1, 2, 3), (1, 2, 4), (1, 5), (6,)], [(8,), (9,), (10,), (11,)]]
    expected = [[log_probability(tokens) for tokens in row] for row in distinct]
    assert score_alternatives(asked, asked.logits(), rows) == [pytest.approx(row, abs=1e-5) for row in expected]
    assert asked.fed == [(), ()], "the cache that was asked is left as it was"


def test_alternatives_are_the_same_in_steps_of_a_row_alone():
    asked, rows = Distribution([()]), [[(1, 2, 3, 4), (1, 2, 3, 5), (1, 5), (6, 7)]]
    block, steps = (score_alternatives(asked, asked.logits(), rows, feed) for feed in ("block", "steps"))
    assert block == steps and asked.extensions == [3 + 1 + 2 + 3], "beginnings of 1, 2 and 3 tokens, each on a copy"


def test_alternatives_with_different_first_tokens_cost_no_extension():
    asked = Distribution()
    score_alternatives(asked, asked.logits(), [[(1, 2), (3, 4)], [(5,), (6, 7, 8)]])
    assert asked.extensions == [0]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("It is Rex.", True), ("REX!", True), ("Her dog T-Rex", True), ("It is Rexy.", False), ("Bella", False),
        ("Rex, not Bella", True), ("Bella, then Rex", False), ("", False),
    ],
)  # fmt: skip
def test_a_value_counts_as_whole_word_before_any_distractor(answer, found):
    assert contains_value(answer, "Rex", ["Bella"]) is found


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["chat template", "transcript"])
def test_notes_tell_the_opening_the_turns_and_the_fact(template):
    system = "{{ 'Be kind.' }}"
    tokenizer = toy_tokenizer(template and system + template)
    conversation = talk(depth=0.5)
    chat = encode(tokenizer, conversation, answer_prefix=True)
    notes, words = chat.notes, lambda places: tokenizer.decode([chat.history[place] for place in places])
    turns = notes["turns"]
    assert words(at for at, turn in enumerate(turns) if turn == -1) == (
        "Be kind.<|im_start|>user\n" if template else "User: "
    )
    for number in (0, 3, 7):
        said = words(at for at, turn in enumerate(turns) if turn == number)
        assert all(part in said for part in conversation.turns[number])
    assert words(at for at, spelled in enumerate(notes["oracle_span"]) if spelled) == 2 * conversation.value
    by_turn = list(chat.notes_by_turn())
    assert [len(part["turns"]) for part in by_turn] == list(map(len, chat.turns))
    assert [turn for part in by_turn for turn in part["turns"]] == turns
