"""The cost model: numbers by hand, monotone where physics is, and honest about what it does not know."""

from dataclasses import replace

import pytest
from kvfrontier.costmodel.roofline import Roofline
from kvfrontier.engines.simulator import Simulator
from kvfrontier.errors import Unsupported
from kvfrontier.metrics import KV_DEVICE_BYTES
from kvfrontier.plan.device import Device
from kvfrontier.plan.model import Model, ModelSpec
from kvfrontier.registry import STRATEGIES

SPEC = ModelSpec("toy", 2, 4, 2, 16, 48, 97, 2048, 1000)
DEVICE = Device("fake", "cpu", memory_bytes=10**9, memory_bytes_per_s=1e6, flops_per_s=1e9, step_overhead_s=0.001)
MODEL = Model(SPEC, "none")


def session(device=DEVICE, **settings):
    return Simulator(**settings).load(MODEL, device)


def test_a_decode_step_moves_weights_and_kept_tokens_at_the_devices_rate():
    roofline = Roofline(SPEC, DEVICE, bytes_per_element=2, efficiency=0.5)
    kv_bytes_per_token = 2 * 2 * 2 * 16 * 2
    assert roofline.step_s(1, 100) == pytest.approx((1000 * 2 + 100 * kv_bytes_per_token) / (0.5 * 1e6) + 0.001)


def test_a_long_prefill_is_bound_by_arithmetic_and_exact_scores_cost_half_the_attention_more():
    roofline = Roofline(SPEC, replace(DEVICE, memory_bytes_per_s=1e12), bytes_per_element=2, efficiency=1.0)
    attention = 2000**2 * 4 * 16 * 2
    assert roofline.prefill_s([2000], False) == pytest.approx((2 * 1000 * 2000 + 2 * attention) / 1e9)
    assert roofline.prefill_s([2000], True) - roofline.prefill_s([2000], False) == pytest.approx(attention / 1e9)


def test_generation_is_deterministic_and_times_rise():
    full = STRATEGIES.get("full")()
    first, second = (session().generate(full, [[1] * 64] * 2, 8) for _ in range(2))
    assert first == second
    times = first.token_times_s[0]
    assert times == sorted(times) and times[0] > 0 and len(set(times)) == 8
    assert [len(tokens) for tokens in first.tokens] == [8, 8]
    assert first.seen_tokens == 64 + 7 and first.kept_tokens == [[71.0, 71.0]] * 2


def test_kept_tokens_are_told_by_layer():
    pyramid = STRATEGIES.get("pyramid_kv")(budget=20)
    kept = session().generate(pyramid, [[1] * 64, [1] * 40], 4).kept_tokens
    by_row = [pyramid.kept_by_layer(2, length, 3) for length in (64, 40)]
    assert kept == [[(by_row[0][layer] + by_row[1][layer]) / 2] * 2 for layer in range(2)]
    assert kept[0][0] > kept[1][0] and kept[0][0] + kept[1][0] == 2 * 23


def test_a_smaller_budget_is_never_slower_and_keeps_fewer_bytes():
    strategy = STRATEGIES.get("streaming_llm")
    ends, kept = [], []
    for budget in (0.25, 0.5, 1.0):
        generation = session().generate(strategy(budget=budget), [[1] * 512], 8)
        ends.append(generation.token_times_s[0][-1])
        kept.append(
            dict((phase, value) for name, phase, value in generation.memory if name == KV_DEVICE_BYTES)["decode"]
        )
    assert ends == sorted(ends) and kept == sorted(kept) and kept[0] < kept[2]


def test_what_does_not_fit_says_how_many_bytes_it_wanted():
    with pytest.raises(MemoryError, match=r"allocate \d+ bytes"):
        session(replace(DEVICE, memory_bytes=3000)).generate(STRATEGIES.get("full")(), [[1] * 512], 2)


def test_unknown_rates_or_shapes_are_unsupported_not_guessed():
    with pytest.raises(Unsupported, match="flops_per_s"):
        session(replace(DEVICE, flops_per_s=None))
    with pytest.raises(Unsupported, match="parameters"):
        Simulator().check(STRATEGIES.get("full")(), replace(SPEC, parameters=None))
    with pytest.raises(Unsupported, match="whole generations"):
        session().open(STRATEGIES.get("full")())


def test_predicted_kv_bytes_are_those_the_torch_engine_measures():
    from kvfrontier.engines._torch_session import TorchSession
    from tiny import random_prompts, tiny_llama

    model = tiny_llama()
    prompts = random_prompts([40])
    for strategy in (STRATEGIES.get("full")(), STRATEGIES.get("streaming_llm")(budget=0.5)):
        measured = TorchSession(model).generate(strategy, prompts, 4)
        predicted = session(dtype="float32").generate(strategy, prompts, 4)
        held = [
            {phase: value for name, phase, value in side.memory if name == KV_DEVICE_BYTES}
            for side in (measured, predicted)
        ]
        assert held[0] == held[1]


def test_codes_take_the_bytes_of_their_own_formula_and_are_read_faster():
    plain, coded = (session().generate(STRATEGIES.get(name)(), [[1] * 512] * 2, 4) for name in ("full", "int8"))
    held = {phase: value for name, phase, value in coded.memory if name == KV_DEVICE_BYTES}
    tokens = {"prefill": 512, "decode": 515}
    assert held == {phase: 2 * count * 2 * 2 * 2 * (16 + 2) for phase, count in tokens.items()}
    assert coded.kept_tokens == plain.kept_tokens
    assert coded.token_times_s[0][-1] < plain.token_times_s[0][-1]


def test_presses_have_no_formula():
    with pytest.raises(Unsupported, match="no formula for presses: engine kvpress runs them"):
        Simulator().check(STRATEGIES.get("kvpress")(), SPEC)
