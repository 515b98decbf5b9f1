"""Rows of strategies that fetch: what steps chose, by layer and head; the achieved budget; the proof that it held."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch
from kvfrontier.cache.fetch_log import FetchLog
from kvfrontier.engines._torch_sequences import TorchSequences
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import KVFrontierError
from kvfrontier.registry import WORKLOADS
from kvfrontier.strategies.delta_fetch import DeltaFetch
from kvfrontier.strategies.full import Full
from kvfrontier.strategies.infinigen import Infinigen
from kvfrontier.workloads._fetched import fetch_measurements
from tiny import tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer

CASES = {
    "speed": {"context_tokens": 50, "output_tokens": 4, "repeats": 1, "batch_size": 2, "text": "generated"},
    "fidelity": {"context_tokens": 50, "continuation_tokens": 3, "documents": 3, "text": "generated",
                 "side_by_side": 2},
}  # fmt: skip


def measure(workload, strategy):
    found = defaultdict(list)
    session = TorchSession(tiny_llama(layers=4, vocab=VOCAB, max_positions=4096), toy_tokenizer())
    for measurement in WORKLOADS.get(workload)(**CASES[workload]).run(session, strategy, seed=0):
        found[measurement.metric].append(measurement)
    return found


@pytest.mark.parametrize("workload", CASES)
@pytest.mark.parametrize("made", [Infinigen, DeltaFetch])
def test_a_row_tells_what_steps_chose_and_the_budget_is_their_share(workload, made):
    found = measure(workload, made(alpha=None, budget=20))
    fetched = {(m.layer, m.head): m.value for m in found["fetched_tokens"]}
    assert fetched == {(layer, head): 51 if layer < 2 else 20 for layer in range(4) for head in range(2)}
    (achieved,) = found["achieved_budget"]
    assert achieved.value == pytest.approx((1 + 1 + 20 / 51 + 20 / 51) / 4)
    reused = {m.layer: m.value for m in found["fetch_reuse"]}
    assert len(reused) == 4 and (reused[0] > 0.6) == (made is DeltaFetch)
    assert len(found["fetch_device_bytes"]) == 1
    token_bytes = 2 * 2 * 16 * 4  # of all heads
    host = {m.phase: m.value for m in found["kv_host_bytes"]}
    assert host["decode"] == (2 if workload == "speed" else 1) * 4 * 53 * token_bytes
    if workload == "speed" and made is Infinigen:
        copied = {m.phase: m.value for m in found["fetched_bytes"]}
        assert copied == {"prefill": 0, "decode": 2 * (2 * 51 + 2 * 20) * token_bytes}
        assert {m.phase: m.value for m in found["stored_bytes"]} == {
            "prefill": 2 * 4 * 50 * token_bytes, "decode": 2 * 4 * token_bytes,
        }  # fmt: skip


def test_a_row_of_an_answer_without_decoding_is_one_of_the_whole_cache():
    case = {"context_tokens": 420, "conversations": 1, "controls": 0, "depths": (0.0,)}
    session = TorchSession(tiny_llama(layers=4, vocab=VOCAB, max_positions=4096), toy_tokenizer())
    for scoring, decodes in (("forced_choice", False), ("contains", True)):
        run = WORKLOADS.get("retention")(**case, scoring=scoring).run(session, Infinigen(), seed=0)
        found = [m for m in run if m.metric in ("achieved_budget", "fetched_tokens")]
        assert (found[-1].value < 1.0) == decodes and (len(found) > 1) == decodes


@pytest.mark.parametrize("workload", ["retention", "needle", "multi_turn"])
def test_a_question_in_steps_is_read_with_what_each_step_chose(workload, monkeypatch):
    case = {
        "retention": {"context_tokens": 420, "conversations": 2, "depths": (0.0,)},
        "needle": {"context_tokens": 300, "samples": 2, "depths": (0.5,), "answer_tokens": 2},
        "multi_turn": {"conversations": 2, "distances": (1,), "cache": "re_prefilled", "second_question": False},
    }[workload]
    session = TorchSession(tiny_llama(layers=4, vocab=VOCAB, max_positions=4096), toy_tokenizer())

    def margins(strategy, feed):
        run = list(WORKLOADS.get(workload)(**case, controls=0, feed=feed).run(session, strategy, seed=0))
        budgets = [m.value for m in run if m.metric == "achieved_budget"]
        by_item = {(m.request, m.turn): m.value for m in run if m.metric == "retention_margin"}
        return [by_item[item] for item in sorted(by_item)], budgets[-1]

    calls = Counter()
    for name in ("extend", "decode"):
        monkeypatch.setattr(TorchSequences, name, counted(calls, getattr(TorchSequences, name)))
    full, _ = margins(Full(), "block")
    assert calls["extend"] > len(full), "choices that begin alike are told apart on copies, after the questions"
    fetching = Infinigen(alpha=None, budget=4, full_layers=1)
    block = margins(fetching, "block")
    assert block[0] == pytest.approx(full, abs=1e-4)
    calls.clear()
    assert margins(Full(), "steps")[0] == pytest.approx(full, abs=1e-4)
    steps = margins(fetching, "steps")
    assert calls["extend"] == 0 and calls["decode"] > 2 * len(full)
    assert steps[0] != pytest.approx(full, abs=1e-2) and steps[1] < 0.5


def counted(calls, method):
    def call(*arguments, **settings):
        calls[method.__name__] += 1
        return method(*arguments, **settings)

    return call


def log(chosen, most):
    made = FetchLog()
    made.add_step(torch.tensor([[50, 50]]), torch.tensor([chosen]), torch.tensor([[0, 0]]))
    return FetchLog(**{**vars(made), "most": most})


@pytest.mark.parametrize("most", [[10, 11], [0, 10]])
def test_more_than_the_formula_allows_or_nothing_at_all_is_an_error(most):
    strategy = Infinigen(budget=10, full_layers=1)
    with pytest.raises(KVFrontierError, match=r"infinigen fetched (11|0) tokens of layer 1, head [01] in one step"):
        list(fetch_measurements(strategy, [log([50, 50], [50, 50]), log([10, 10], most)], 50))
    assert list(fetch_measurements(strategy, [log([50, 50], [50, 50]), log([10, 9], [10, 9])], 50))


def test_parts_of_a_step_are_timed_where_somebody_asks():
    sequences = TorchSession(tiny_llama(layers=4)).open(DeltaFetch(overlap="layer"))
    sequences.prefill([[5] * 30], reserve_tokens=3)
    sequences.decode([4])
    timer = sequences.time_parts()
    sequences.decode([4])
    assert {"speculate", "gather", "copy", "wait"} == set(timer.seconds)
    assert all(seconds > 0 for seconds in timer.seconds.values())
    before = dict(timer.seconds)
    sequences.fork().decode([4])
    assert timer.seconds == before, "a copy is not timed"
