"""`needle` on a session that recomputes everything, on tiny models under real caches, and on the packaged model."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean

import pytest
from fake_session import FakeSession
from kvfrontier.engines import ENGINES
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.plan.device import Device
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.workloads import needle
from packaged_model import packaged_model
from tiny import tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer

FULL = STRATEGIES.get("full")()
RECENT = STRATEGIES.get("streaming_llm")(budget=0.5, num_sinks=0)
SMALL = {"context_tokens": 400, "samples": 2, "needles": 2, "controls": 1, "side_by_side": 2, "depths": (0.0, 1.0),
         "answer_tokens": 3}  # fmt: skip


def keep_recent(strategy, tokens):
    kept = strategy.kept_tokens(tokens)
    return list(range(tokens - kept, tokens))


def fake(keeps=keep_recent):
    return FakeSession(tiny_llama(vocab=VOCAB), toy_tokenizer(), keeps)


def measure(session, strategy, **settings):
    found = defaultdict(list)
    for measurement in WORKLOADS.get("needle")(**SMALL | settings).run(session, strategy, seed=0):
        found[measurement.metric, measurement.phase].append(measurement)
    return found


def average(found, metric, phase):
    return mean(measurement.value for measurement in found[metric, phase])


def test_a_recent_window_loses_an_early_needle_and_keeps_a_late_one():
    found = measure(fake(), RECENT)
    assert average(found, "fact_survival", "depth=0") == 0.0
    assert average(found, "fact_survival", "depth=1") == 1.0
    assert average(found, "achieved_budget", "") == pytest.approx(0.5, abs=0.01)
    assert {m.value for phase in ("depth=0", "depth=1") for m in found["context_tokens", phase]} == {400}
    whole = measure(fake(), FULL)
    assert {m.value for phase in ("depth=0", "depth=1") for m in whole["fact_survival", phase]} == {1.0}
    assert average(whole, "kv_device_bytes", "prefill") == average(whole, "kv_full_bytes", "prefill")


@pytest.mark.parametrize(
    ("kind", "asked", "margins"),
    [("single", 1, 1), ("multi_key", 1, 1), ("multi_value", 3, 0), ("multi_query", 3, 0), ("variable_tracking", 4, 0)],
)
def test_every_needle_is_scored_once_per_depth_and_text(kind, asked, margins):
    found = measure(fake(), RECENT, kind=kind, needles=3, samples=1)
    for phase in ("depth=0", "depth=1"):
        scored = sorted((m.request, m.turn) for m in found["retention_contained", phase])
        assert scored == [(0, turn) for turn in range(asked)]
        assert len(found["retention_margin", phase]) == margins
    assert [m.turn for m in found["control_no_context", ""]] == list(range(asked))
    assert WORKLOADS.get("needle")(kind=kind).task == f"needle_{kind}"


def test_answers_are_searched_as_ruler_does_but_for_whole_words_before_those_of_other_keys(monkeypatch):
    answers, text = [], ""
    real = needle.hunt

    def remembered(*settings):
        one = real(*settings)
        answers[:] = [told.answer for told in (*one.asked, *(other for _, other in one.others))]
        return one

    monkeypatch.setattr(needle, "hunt", remembered)
    monkeypatch.setattr(needle, "greedy_answers", lambda asked, logits, *_: [text.format(*answers)] * len(logits))
    for kind, text, expected in (
        ("multi_key", " {0}.", [1.0]),
        ("multi_key", " 1{0}, no", [0.0]),
        ("multi_key", " {1} or {0}", [0.0]),
        ("multi_key", " {0}, not {1}", [1.0]),
        ("multi_value", " {1} AND {0}!", [1.0, 1.0]),
        ("multi_query", " {1}", [0.0, 1.0]),
        ("variable_tracking", "{2} {0}", [1.0, 0.0, 1.0]),
    ):
        found = measure(fake(), FULL, kind=kind, samples=1, depths=(0.5,))
        values = {m.turn: m.value for phase in ("depth=0.5", "depth=0") for m in found["retention_contained", phase]}
        assert [values[turn] for turn in sorted(values)] == expected, (kind, text)


def test_side_by_side_or_one_by_one_gives_the_same_numbers():
    together, alone = (measure(fake(), RECENT, kind="multi_key", side_by_side=width) for width in (2, 1))
    assert together.keys() == alone.keys()
    for key in together:
        first, second = ([m.value for m in found[key]] for found in (together, alone))
        assert first == pytest.approx(second, abs=1e-4), key


def test_the_control_runs_with_the_full_cache_and_once_a_session():
    shared = fake()
    measure(shared, RECENT)
    opened = len(shared.opened)
    again = measure(shared, RECENT)
    assert len(shared.opened) - opened == 2  # a batch a depth
    assert shared.opened.count(FULL) == 2  # the control, and a probe of what a token takes
    assert len(again["control_no_context", ""]) == 1


class Reads(FakeSession):
    """Remembers what was read, piece by piece: before and after the compression, then the answer."""

    def open(self, strategy):
        sequences = super().open(strategy)
        extend = sequences.extend  # which `prefill` calls, too
        self.read = []

        def extended(tokens, **others):
            self.read.append(self.tokenizer.decode(tokens[0]))
            return extend(tokens, **others)

        sequences.extend = extended
        return sequences


def test_the_question_is_seen_before_the_compression_only_if_asked():
    for seen in (False, True):
        session = Reads(tiny_llama(vocab=VOCAB), toy_tokenizer(), keep_recent)
        found = measure(session, RECENT, question_seen=seen, samples=1, depths=(0.0,), controls=0, answer_tokens=1)
        before, after, *_ = session.read
        assert ("What is" in before) == seen and ("What is" in after) == (not seen)
        assert after.endswith("The secret number of the jaguar is")
        lengths = {m.value for m in found["context_tokens", "depth=0"]}
        assert (lengths == {400}) == (not seen)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("h2o", {"budget": 0.3}),
        ("kivi", {}),
        ("infinigen", {"budget": 0.2}),
        ("offload", {}),
        ("disk", {}),
        ("stack", {"evict": "h2o", "store": "int8", "budget": 0.3}),
    ],
)
def test_every_kind_of_strategy_answers_by_decode_steps(name, settings):
    strategy = STRATEGIES.get(name)(**settings)
    session = TorchSession(tiny_llama(layers=3, vocab=VOCAB, max_positions=4096), toy_tokenizer())
    found = measure(session, strategy, kind="multi_key", alternatives=0, controls=0)
    full = measure(session, FULL, kind="multi_key", alternatives=0, controls=0)
    assert [m.phase for key, values in found.items() if key[0] == "retention_contained" for m in values] == [
        m.phase for key, values in full.items() if key[0] == "retention_contained" for m in values
    ]
    achieved = average(found, "achieved_budget", "")
    assert (
        achieved == pytest.approx(1.0) if strategy.kept_tokens(400) == 400 and name != "infinigen" else achieved < 0.9
    )
    if name == "infinigen":
        assert found["fetched_tokens", ""], "an answer of one token would have fetched nothing"


def test_an_oracle_keeps_the_needle_wherever_it_is():
    session = TorchSession(tiny_llama(vocab=VOCAB, max_positions=4096), toy_tokenizer())
    oracle = STRATEGIES.get("anchors")(policy="recent", protect=("oracle_span",), budget=0.3)
    found = measure(session, oracle, kind="multi_value", controls=0)
    assert all(average(found, "fact_survival", phase) == 1.0 for phase in ("depth=0", "depth=1"))


def test_a_strategy_that_did_not_act_is_an_error():
    with pytest.raises(KVFrontierError, match="streaming_llm keeps"):
        measure(fake(lambda strategy, tokens: list(range(tokens))), RECENT)


def test_what_a_model_or_a_strategy_cannot_do_is_known_before():
    workload = WORKLOADS.get("needle")(context_tokens=500)
    with pytest.raises(Unsupported, match="= 724 tokens; small has 512 positions"):
        workload.check(ModelSpec("small", max_positions=512))
    for name, settings, why in (("anchors", {"protect": ("early_turns",)}, "turns"), ("h2o_oracle_mask", {}, "whole")):
        with pytest.raises(Unsupported, match=f"does not give {why}"):
            workload.check_strategy(STRATEGIES.get(name)(**settings))


@pytest.mark.parametrize(
    ("settings", "wrong"), [({"alternatives": 1}, "2 and more"), ({"depths": (0.5, 0.5)}, "each depth once")]
)
def test_settings_that_contradict_each_other_are_refused(settings, wrong):
    with pytest.raises(ValueError, match=wrong):
        WORKLOADS.get("needle")(**settings)


@pytest.mark.model
def test_the_packaged_model_finds_a_needle_and_does_not_without_it():
    loaded = ENGINES.get("torch")().load(packaged_model(), Device("cpu", "cpu"))
    settings = {"context_tokens": 256, "samples": 4, "controls": 4, "side_by_side": 4, "depths": (0.25,),
                "answer_tokens": 8, "kind": "multi_key"}  # fmt: skip
    full = measure(loaded, FULL, **settings)
    assert average(full, "retention_contained", "depth=0.25") >= 0.75
    assert average(full, "control_no_context", "") == 0.0
    recent = measure(loaded, STRATEGIES.get("recent")(budget=0.3), **settings)
    assert average(recent, "fact_survival", "depth=0.25") == 0.0
    assert average(recent, "retention_contained", "depth=0.25") == 0.0
    assert average(recent, "retention_margin", "depth=0.25") < average(full, "retention_margin", "depth=0.25") - 2
