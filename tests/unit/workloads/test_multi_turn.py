"""`multi_turn`: scripts and their tokens, one cache that is carried along, and questions that leave it as it was."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean

import pytest
from fake_session import FakeSession
from kvfrontier.engines import ENGINES
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.plan.device import Device
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.workloads._chat import TurnCounter, render
from kvfrontier.workloads._choice import contains_value
from kvfrontier.workloads._facts import SMALL_TALK
from kvfrontier.workloads._script import script
from kvfrontier.workloads._talk import talk
from packaged_model import packaged_model
from tiny import tiny_llama
from toy_tokenizer import TEMPLATE, VOCAB, toy_tokenizer

FULL = STRATEGIES.get("full")()
RECENT = STRATEGIES.get("streaming_llm")(budget=400, num_sinks=0)
SMALL = {"distances": (1, 3), "conversations": 2, "controls": 1, "alternatives": 5, "side_by_side": 2}
QUALITY = ("retention_correct", "retention_contained", "retention_margin", "second_question_correct",
           "second_question_margin")  # fmt: skip


def told(number=0, seed=0, turns_after=3, alternatives=20, distractors=0):
    return script(number, seed, turns_after, alternatives, distractors, "templated")


def keep_recent(strategy, tokens):
    kept = min(tokens, strategy.kept_tokens(tokens))
    return list(range(tokens - kept, tokens))


def fake(keeps=keep_recent):
    return FakeSession(tiny_llama(vocab=VOCAB, max_positions=4096), toy_tokenizer(), keeps)


def real():
    return TorchSession(tiny_llama(vocab=VOCAB, max_positions=4096), toy_tokenizer())


def measure(session, strategy, **settings):
    found = defaultdict(list)
    for measurement in WORKLOADS.get("multi_turn")(**SMALL | settings).run(session, strategy, seed=0):
        found[measurement.metric, measurement.phase].append(measurement)
    return found


def average(found, metric, phase):
    return mean(measurement.value for measurement in found[metric, phase])


def values(found, phase):
    return {(m.metric, m.request, m.turn): m.value for metric in QUALITY for m in found[metric, phase]}


def test_a_script_is_the_same_on_every_machine():
    first, second = told()
    assert (first.statement, second.statement) == (
        "Wanda's dog is called Oscar.",
        "Lukas lives in the city of Sydney.",
    ), "changed scripts change every measurement of `multi_turn`"
    assert first.turns == second.turns and len(first.turns) == 5 and first.fact_turn == second.fact_turn == 1
    assert first.turns[1][0] == f"Please remember this: {first.statement} {second.statement}"
    assert first.turns[1][1] == f"I will remember it: {first.statement} {second.statement}"
    assert all(turn in SMALL_TALK for place, turn in enumerate(first.turns) if place != 1)
    assert told() == (first, second)
    assert len({one.statement for number in range(20) for seed in range(3) for one in told(number, seed)}) > 80


@pytest.mark.parametrize("number", range(20))
def test_facts_are_of_different_kinds_and_people_and_distractors_of_others(number):
    both = told(number, turns_after=8, distractors=5)
    assert both[0].alternatives != both[1].alternatives and both[0].question != both[1].question
    for one, other in (both, both[::-1]):
        assert one.value in one.alternatives and set(one.distractors) < set(one.alternatives) - {one.value}
        assert not contains_value(f"{other.question} {other.answer} {other.value}", one.value, ())
        said = [" ".join(turn) for turn in one.turns if contains_value(" ".join(turn), one.value, ())]
        assert said == [" ".join(one.turns[1])]
    stated = [turn for turn in both[0].turns if turn[0].startswith("Please remember")]
    assert len(stated) == 6 and len(both[0].turns) == 10
    assert [len(one.distractors) for one in both] == [3, 2]


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["chat template", "transcript"])
@pytest.mark.parametrize("answer_prefix", [True, False])
def test_tokens_say_what_the_script_says(template, answer_prefix):
    tokenizer, both = toy_tokenizer(template), told()
    one = talk(tokenizer, 0, both, answer_prefix)
    history = [token for turn in one.turns for token in turn]
    assert tokenizer.decode(history) == render(tokenizer, both[0].turns)
    assert len(one.turns) == 5 and one.tokens == TurnCounter(tokenizer)(both[0].turns)
    for fact, (conversation, chat) in enumerate(zip(both, one.chats, strict=True)):
        answered = tokenizer.decode(one.answered(fact))
        assert conversation.question in answered and f"{conversation.answer} {conversation.value}." in answered
        question = tokenizer.decode(chat.question)
        assert conversation.question in question and question.endswith(conversation.answer) == answer_prefix
        said = tokenizer.decode([history[place] for place in chat.value_positions])
        assert said.replace(" ", "") == 2 * conversation.value
        assert not contains_value(tokenizer.decode(one.after_facts(10_000)), conversation.value, ())
    assert len(one.after_facts(7)) == 7 and one.after_facts(0) == []
    assert [len(notes["turns"]) for notes in one.notes] == list(map(len, one.turns))
    spelled = {place for chat in one.chats for place in chat.value_positions}
    oracle = [said for notes in one.notes for said in notes["oracle_span"]]
    assert {place for place, said in enumerate(oracle) if said} == spelled
    assert {said for said in one.notes[2]["turns"]} == {2.0}


def test_every_fact_is_asked_for_at_every_distance_first_and_second():
    found = measure(real(), FULL)
    asked = [(request, fact) for request in range(2) for fact in range(2)]
    for phase in ("distance=1", "distance=3"):
        for metric in ("retention_correct", "retention_margin", "second_question_correct", "second_question_margin"):
            assert sorted((m.request, m.turn) for m in found[metric, phase]) == asked
        margins = values(found, phase)
        for name in ("retention", "second_question"):
            assert all(margins[f"{name}_correct", *one] == float(margins[f"{name}_margin", *one] > 0) for one in asked)
    alone = measure(real(), FULL, second_question=False)
    assert not [key for key in alone if key[0].startswith("second")]
    assert values(alone, "distance=3").items() <= values(found, "distance=3").items()


def test_a_recent_window_loses_the_facts_with_the_distance():
    found = measure(real(), RECENT, distances=(1, 4))
    assert average(found, "fact_survival", "distance=1") == 1.0
    assert average(found, "fact_survival", "distance=4") == 0.0
    whole = measure(real(), FULL, distances=(1, 4))
    assert average(whole, "fact_survival", "distance=4") == 1.0 == average(whole, "achieved_budget", "")
    assert average(whole, "kv_device_bytes", "prefill") == average(whole, "kv_full_bytes", "prefill")
    tokens = average(whole, "context_tokens", "distance=4")
    assert tokens > average(whole, "context_tokens", "distance=1")


def test_the_full_cache_carried_along_is_the_full_cache_read_anew():
    carried, anew = (measure(real(), FULL, cache=way) for way in ("persistent", "re_prefilled"))
    for phase in ("distance=1", "distance=3"):
        assert values(carried, phase) == pytest.approx(values(anew, phase), abs=1e-3)
        assert [m.value for m in carried["fact_survival", phase]] == [m.value for m in anew["fact_survival", phase]]


def test_a_cache_that_is_carried_along_loses_what_one_that_is_read_anew_still_has():
    """A window over all that was seen is the same either way; what H2O evicted after a turn does not come back."""
    carried, anew = (
        measure(real(), STRATEGIES.get("h2o")(budget=0.3), cache=way) for way in ("persistent", "re_prefilled")
    )
    assert values(carried, "distance=3") != pytest.approx(values(anew, "distance=3"), abs=1e-3)
    assert average(anew, "achieved_budget", "") == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("h2o", {"budget": 0.3}),
        ("streaming_llm", {"budget": 0.3, "positions": "rolled"}),
        ("kivi", {}),
        ("infinigen", {"budget": 0.2, "full_layers": 1}),
        ("disk", {}),
        ("stack", {"evict": "h2o", "store": "int8", "budget": 0.3}),
    ],
)
def test_questions_leave_the_cache_as_it_was(name, settings):
    strategy = STRATEGIES.get(name)(**settings)
    often, once = (
        measure(real(), strategy, distances=distances, scoring="contains", answer_tokens=3, controls=0)
        for distances in ((1, 2, 3), (3,))
    )
    assert len(values(often, "distance=3")) == 2 * 2 * 4
    assert values(often, "distance=3") == pytest.approx(values(once, "distance=3"), abs=1e-6)
    first, second = ([m.value for m in found["fact_survival", "distance=3"]] for found in (often, once))
    assert first == second
    bytes_held = [average(found, "kv_device_bytes", "prefill") for found in (often, once)]
    assert bytes_held[0] == bytes_held[1]
    assert bool(often["fetched_tokens", ""]) == (name == "infinigen"), "answers are decode steps"


class Reads(FakeSession):
    """Remembers what each batch has read when it is asked."""

    def open(self, strategy):
        sequences = super().open(strategy)
        self.__dict__.setdefault("asked", [])
        self._watch(sequences)
        return sequences

    def _watch(self, sequences):
        extend, fork = sequences.extend, sequences.fork

        def extended(tokens, **others):
            found = extend(tokens, **others)
            self.asked.append(self.tokenizer.decode(sequences.rows[0].tokens))
            return found

        def forked():
            copy = fork()
            self._watch(copy)
            return copy

        sequences.extend, sequences.fork = extended, forked


@pytest.mark.parametrize("cache", ["persistent", "re_prefilled"])
def test_the_second_question_comes_after_the_first_and_its_answer(cache):
    session = Reads(tiny_llama(vocab=VOCAB, max_positions=4096), toy_tokenizer())
    measure(session, FULL, cache=cache, conversations=1, distances=(1,), controls=0)
    first, second = told(turns_after=1, alternatives=5)
    asked = [text for text in session.asked if text.endswith((first.answer, second.answer))]
    assert len(asked) == 4
    for one, other in ((first, second), (second, first)):
        alone, after = sorted((text for text in asked if text.endswith(one.answer)), key=len)
        assert other.question not in alone
        assert after.index(f"{other.answer} {other.value}.<|im_end|>") < after.index(one.question)
        assert after.startswith(alone[: alone.index(one.question)])


def test_side_by_side_or_one_by_one_gives_the_same_numbers():
    strategy = STRATEGIES.get("h2o")(budget=0.3)
    together, alone = (measure(real(), strategy, side_by_side=width) for width in (2, 1))
    assert together.keys() == alone.keys()
    for key in together:
        if key[0].endswith("_bytes"):  # what is beside keys and values is as wide as a batch's longest row
            continue
        first, second = (sorted(found[key], key=lambda m: (m.request or 0, m.turn or 0)) for found in (together, alone))
        assert [m.value for m in first] == pytest.approx([m.value for m in second], abs=1e-4), key


def test_controls_run_with_the_full_cache_and_once_a_session():
    shared, settings = fake(), {"conversations": 1, "distances": (1,), "second_question": False}
    measure(shared, RECENT, **settings)
    opened = len(shared.opened)
    again = measure(shared, RECENT, **settings)
    assert len(shared.opened) - opened == 1
    for metric in ("control_no_context", "control_recent_only"):
        assert [(m.request, m.turn) for m in again[metric, ""]] == [(0, 0), (0, 1)]


def test_an_oracle_keeps_both_facts_wherever_they_are():
    oracle = STRATEGIES.get("anchors")(policy="recent", protect=("oracle_span",), budget=0.3)
    for cache in ("persistent", "re_prefilled"):
        found = measure(real(), oracle, cache=cache, controls=0)
        assert average(found, "fact_survival", "distance=3") == 1.0
        assert average(found, "achieved_budget", "") == pytest.approx(0.3, abs=0.01)


def test_a_strategy_that_did_not_act_is_an_error():
    with pytest.raises(KVFrontierError, match="streaming_llm keeps"):
        measure(fake(lambda strategy, tokens: list(range(tokens))), RECENT, distances=(8,))


def test_a_chat_that_does_not_fit_is_unsupported():
    small = TorchSession(tiny_llama(vocab=VOCAB, max_positions=512), toy_tokenizer())
    with pytest.raises(Unsupported, match=r"chat \d+ \+ questions \d+ .* has 512 positions"):
        measure(small, FULL, distances=(8,))


def test_only_a_cache_that_is_carried_along_needs_turns():
    made = WORKLOADS.get("multi_turn")
    assert "turns" in made().needs and "turns" not in made(cache="re_prefilled").needs
    assert made(scoring="contains").task == "multi_turn_contains"


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"alternatives": 2, "distractors": 3}, "use fewer"),
        ({"distances": (1, 2), "distractors": 4}, "4 distractors in 3 turns"),
        ({"distances": (2, 2)}, "each distance once"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, wrong):
    with pytest.raises(ValueError, match=wrong):
        WORKLOADS.get("multi_turn")(**settings)


@pytest.mark.model
def test_the_packaged_model_remembers_with_the_full_cache_and_a_window_forgets():
    loaded = ENGINES.get("torch")().load(packaged_model(), Device("cpu", "cpu"))
    settings = {"distances": (1, 6), "conversations": 4, "controls": 4, "side_by_side": 4, "alternatives": 20}
    full = measure(loaded, FULL, **settings)
    assert all(average(full, "retention_correct", phase) >= 0.8 for phase in ("distance=1", "distance=6"))
    assert average(full, "control_no_context", "") <= 0.25 and average(full, "control_recent_only", "") <= 0.25
    recent = measure(loaded, STRATEGIES.get("recent")(budget=0.4), **settings)
    assert average(recent, "fact_survival", "distance=6") == 0.0
    assert average(recent, "retention_correct", "distance=6") <= 0.4
    margins = [average(found, "retention_margin", "distance=6") for found in (full, recent)]
    assert margins[0] > margins[1] + 2
