"""`speed`: what it derives from the times of an engine."""

from __future__ import annotations

from collections import defaultdict

import pytest
from kvfrontier.engines.base import Generation, Session
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.workloads.speed import narrow_enough, peak_kv_bytes
from toy_tokenizer import toy_tokenizer

FULL = STRATEGIES.get("full")()


class ScriptedSession(Session):
    """Every request's first token after `first_s`, then one each `step_s`; remembers what it was asked."""

    def __init__(self, tokenizer=None, kept_share=1.0, first_s=(2.0, 3.0), step_s=0.5):
        self.spec, self.tokenizer, self.memo = ModelSpec("scripted"), tokenizer, {}
        self.kept_share, self.first_s, self.step_s, self.asked = kept_share, first_s, step_s, []

    def open(self, strategy):
        raise AssertionError("speed must work with engines that offer whole generations only")

    def generate(self, strategy, prompts, output_tokens):
        self.asked.append(([list(prompt) for prompt in prompts], output_tokens))
        firsts = [self.first_s[row % len(self.first_s)] for row in range(len(prompts))]
        seen = len(prompts[0]) + output_tokens - 1
        return Generation(
            tokens=[[1] * output_tokens for _ in prompts],
            token_times_s=[[first + self.step_s * step for step in range(output_tokens)] for first in firsts],
            memory=[
                ("kv_device_bytes", "prefill", 1e9),
                ("kv_host_bytes", "prefill", 3e9),
                ("kv_aux_bytes", "prefill", 9e9),
                ("kv_device_bytes", "decode", 2e9),
                ("process_peak_bytes", "decode", 5e9),
            ],
            kept_tokens=[[seen * self.kept_share] * 2 for _ in range(3)],
            seen_tokens=seen,
        )

    def close(self):
        pass


def measure(session, strategy=FULL, **settings):
    found = defaultdict(list)
    for measurement in WORKLOADS.get("speed")(**settings).run(session, strategy, seed=0):
        found[measurement.metric].append(measurement)
    return found


def values(found, metric):
    return [measurement.value for measurement in found[metric]]


def test_times_and_rates_of_a_batch():
    found = measure(ScriptedSession(), batch_size=2, context_tokens=7, output_tokens=5, repeats=1)
    assert values(found, "ttft_s") == [2.0, 3.0]
    assert values(found, "tpot_s") == [0.5, 0.5]
    assert values(found, "e2e_latency_s") == [5.0]
    assert values(found, "prefill_s") == [3.0]
    assert values(found, "decode_s") == [3.0]
    assert values(found, "output_tokens_per_s") == [10 / 5]
    assert values(found, "decode_tokens_per_s") == [8 / 3]
    assert values(found, "output_tokens") == [5, 5]
    assert values(found, "context_tokens") == [7, 7]
    assert values(found, "achieved_budget") == [1.0]
    assert len(found["kept_tokens"]) == 6


def test_throughput_per_gb_counts_all_tiers_at_the_fullest_phase():
    found = measure(ScriptedSession(), batch_size=2, context_tokens=7, output_tokens=5, repeats=1)
    assert values(found, "output_tokens_per_s_per_gb") == [2 / 4]
    assert peak_kv_bytes([("process_peak_bytes", "decode", 5.0)]) == 0
    assert peak_kv_bytes([("kv_device_bytes", "decode", 5.0), ("kv_disk_bytes", "decode", 7.0)]) == 12


def test_every_repeat_has_its_own_values_and_memory_readings():
    found = measure(ScriptedSession(), repeats=2)
    assert [measurement.repeat for measurement in found["e2e_latency_s"]] == [0, 1]
    assert {(m.phase, m.repeat) for m in found["kv_device_bytes"]} == {
        ("prefill", 0), ("prefill", 1), ("decode", 0), ("decode", 1),
    }  # fmt: skip


def test_the_warm_up_has_the_shape_but_not_the_prompts_of_the_measurement():
    session = ScriptedSession(toy_tokenizer())
    measure(session, batch_size=3, context_tokens=40, output_tokens=6, repeats=2, text="generated")
    warm_up, *measured = session.asked
    assert [[len(prompt) for prompt in prompts] for prompts, _ in session.asked] == [[40] * 3] * 3
    assert warm_up[1] == 4 and [tokens for _, tokens in measured] == [6, 6]
    assert measured[0] == measured[1]
    assert not any(prompt in measured[0][0] for prompt in warm_up[0])


def test_prompts_do_not_depend_on_the_strategy():
    sessions = [ScriptedSession(toy_tokenizer()) for _ in range(2)]
    for session, name in zip(sessions, ("full", "h2o"), strict=True):
        strategy = STRATEGIES.get(name)(**({} if name == "full" else {"budget": 1.0}))
        measure(session, strategy, text="generated", context_tokens=16, repeats=1)
    assert sessions[0].asked == sessions[1].asked


def test_an_engine_that_stops_early_is_an_error():
    class Short(ScriptedSession):
        def generate(self, strategy, prompts, output_tokens):
            return super().generate(strategy, prompts, output_tokens - 1)

    with pytest.raises(KVFrontierError, match=r"produced \[31\] output tokens, 32 were asked for"):
        measure(Short())


def test_a_strategy_that_did_not_act_is_an_error():
    with pytest.raises(KVFrontierError, match=r"streaming_llm keeps 543\.0 tokens per KV head in the batch"):
        measure(ScriptedSession(), STRATEGIES.get("streaming_llm")(budget=0.5))


def test_repeats_stop_once_the_interval_is_narrow_but_never_before_three():
    assert len(measure(ScriptedSession(), repeats=10)["e2e_latency_s"]) == 3
    assert len(measure(ScriptedSession(), repeats=10, stop_within=0.0)["e2e_latency_s"]) == 10
    assert not narrow_enough([1.0, 1.0], 0.1)
    assert not narrow_enough([1.0, 1.2, 1.4], 0.1)


def test_a_request_longer_than_the_model_is_unsupported():
    workload = WORKLOADS.get("speed")(context_tokens=8000, output_tokens=300)
    with pytest.raises(Unsupported, match=r"8000 \+ output_tokens 300 = 8300 tokens; small has 8192 positions"):
        workload.check(ModelSpec("small", max_positions=8192))
    workload.check(ModelSpec("unknown"))
