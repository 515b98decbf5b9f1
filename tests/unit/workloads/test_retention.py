"""`retention` on a session that recomputes everything, and on the packaged model."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean

import pytest
from fake_session import BYTES_PER_TOKEN, FakeSession
from kvfrontier.engines import ENGINES
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.plan.device import Device
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES, WORKLOADS
from packaged_model import packaged_model
from tiny import tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer

FULL = STRATEGIES.get("full")()
RECENT = STRATEGIES.get("streaming_llm")(budget=0.5, num_sinks=0)
SMALL = {"context_tokens": 500, "conversations": 2, "controls": 2, "side_by_side": 2, "depths": (0.0, 1.0)}


def keep_recent(strategy, tokens):
    kept = strategy.kept_tokens(tokens)
    return list(range(tokens - kept, tokens))


def session(keeps=keep_recent):
    return FakeSession(tiny_llama(vocab=VOCAB), toy_tokenizer(), keeps)


def measure(session, strategy, **settings):
    found = defaultdict(list)
    for measurement in WORKLOADS.get("retention")(**SMALL | settings).run(session, strategy, seed=0):
        found[measurement.metric, measurement.phase].append(measurement)
    return found


def average(found, metric, phase):
    return mean(measurement.value for measurement in found[metric, phase])


def test_the_full_cache_keeps_the_fact_everywhere():
    found = measure(session(), FULL)
    survival = found["fact_survival", "depth=0"]
    assert len(survival) == 2 * 2 * 2  # conversations, layers, heads
    assert {m.value for m in survival} == {1.0}
    assert average(found, "achieved_budget", "") == 1.0
    assert average(found, "kv_device_bytes", "prefill") == average(found, "kv_full_bytes", "prefill")


def test_a_recent_window_loses_an_early_fact_and_keeps_a_late_one():
    found = measure(session(), RECENT)
    assert average(found, "fact_survival", "depth=0") == 0.0
    assert average(found, "fact_survival", "depth=1") == 1.0
    assert average(found, "achieved_budget", "") == pytest.approx(0.5, abs=0.01)


def test_bytes_are_of_one_conversation():
    found = measure(session(), FULL)
    tokens = mean(m.value for phase in ("depth=0", "depth=1") for m in found["context_tokens", phase])
    assert average(found, "kv_device_bytes", "prefill") == pytest.approx(tokens * BYTES_PER_TOKEN)
    assert 350 < tokens <= 500


def test_every_conversation_is_scored_once_per_depth():
    found = measure(session(), FULL)
    for phase in ("depth=0", "depth=1"):
        assert [m.request for m in found["retention_correct", phase]] == [0, 1]
        margins = [m.value for m in found["retention_margin", phase]]
        assert [float(margin > 0) for margin in margins] == [m.value for m in found["retention_correct", phase]]
    assert {m.turn for m in found["retention_correct", "depth=1"]} == {0}


def test_side_by_side_or_one_by_one_gives_the_same_numbers():
    together, alone = (measure(session(), RECENT, side_by_side=width) for width in (2, 1))
    for key in together:
        first, second = ([m.value for m in found[key]] for found in (together, alone))
        assert first == pytest.approx(second, abs=1e-4), key


def test_turn_by_turn_reads_the_same_tokens_as_all_at_once():
    whole, turns = (measure(session(), FULL, compress=mode) for mode in ("history", "every_turn"))
    first, second = ([m.value for m in found["retention_margin", "depth=0"]] for found in (whole, turns))
    assert first == pytest.approx(second, abs=1e-3)


def test_controls_run_with_the_full_cache_and_once_a_session():
    shared = session()
    first = measure(shared, RECENT)
    opened = len(shared.opened)
    second = measure(shared, RECENT)
    assert [m.value for m in first["control_no_context", "depth=0"]] == [
        m.value for m in second["control_no_context", "depth=0"]
    ]
    assert len(shared.opened) - opened == 2  # one batch a depth, no control and no probe again
    assert FULL in shared.opened


def test_free_answers_are_searched_for_the_value():
    found = measure(session(), FULL, scoring="contains", answer_tokens=3, controls=0)
    assert len(found["retention_contained", "depth=0"]) == 2
    assert not found["retention_correct", "depth=0"]
    assert not found["control_no_context", "depth=0"]


def test_a_strategy_that_did_not_act_is_an_error():
    with pytest.raises(KVFrontierError, match="streaming_llm keeps"):
        measure(session(lambda strategy, tokens: list(range(tokens))), RECENT)


def test_contexts_without_room_are_unsupported():
    workload = WORKLOADS.get("retention")(context_tokens=500)
    with pytest.raises(Unsupported, match="= 580 tokens; small has 512 positions"):
        workload.check(ModelSpec("small", max_positions=512))
    with pytest.raises(Unsupported, match="facts and distractors alone take"):
        measure(session(), FULL, context_tokens=200, distractors=5)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [({"alternatives": 3, "distractors": 3}, "use fewer"), ({"depths": (0.5, 0.5)}, "each depth once")],
)
def test_settings_that_contradict_each_other_are_refused(settings, wrong):
    with pytest.raises(ValueError, match=wrong):
        WORKLOADS.get("retention")(**settings)


def test_compressing_after_every_turn_stays_within_the_budget():
    found = measure(session(), RECENT, compress="every_turn")
    assert average(found, "fact_survival", "depth=0") == 0.0
    assert average(found, "achieved_budget", "") <= 0.51


def real(strategy, **settings):
    """Under the cache itself, not a session that acts it out."""
    tested = TorchSession(tiny_llama(vocab=VOCAB, max_positions=4096), toy_tokenizer())
    return measure(tested, strategy, conversations=1, controls=0, **settings)


@pytest.mark.parametrize("compress", ["history", "every_turn"])
def test_an_oracle_keeps_the_fact_wherever_it_is_within_the_same_budget(compress):
    oracle = STRATEGIES.get("anchors")(policy="recent", protect=("oracle_span",), budget=0.3)
    found = real(oracle, compress=compress)
    assert average(found, "achieved_budget", "") == pytest.approx(0.3, abs=0.01)
    assert all(average(found, "fact_survival", depth) == 1.0 for depth in ("depth=0", "depth=1"))
    alone = real(STRATEGIES.get("recent")(budget=0.3), compress=compress)
    assert average(alone, "fact_survival", "depth=0") == 0.0


def test_early_turns_keep_what_the_first_turn_says():
    early = STRATEGIES.get("anchors")(
        policy="recent", protect=("early_turns",), early_turns=1, budget=0.6, anchor_share=0.5
    )
    assert average(real(early), "fact_survival", "depth=0") == 1.0


@pytest.mark.model
def test_the_packaged_model_remembers_with_the_full_cache_and_forgets_without_the_fact():
    loaded = ENGINES.get("torch")().load(packaged_model(), Device("cpu", "cpu"))
    settings = {"context_tokens": 200, "conversations": 5, "controls": 5, "side_by_side": 5, "depths": (0.0,)}
    full = measure(loaded, FULL, **settings)
    assert average(full, "retention_correct", "depth=0") >= 0.8
    assert average(full, "control_no_context", "depth=0") <= 0.2
    assert average(full, "control_recent_only", "depth=0") <= 0.2
    recent = measure(loaded, STRATEGIES.get("streaming_llm")(budget=0.3), **settings)
    assert average(recent, "fact_survival", "depth=0") == 0.0
    assert average(recent, "retention_correct", "depth=0") <= 0.4
    heavy = measure(loaded, STRATEGIES.get("h2o")(budget=0.5), **settings)
    assert average(heavy, "retention_margin", "depth=0") > average(recent, "retention_margin", "depth=0") + 2
