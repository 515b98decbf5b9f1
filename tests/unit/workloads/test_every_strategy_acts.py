"""Every strategy passes the proof that it acted, in every workload that asks for one, on the real engine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields

import pytest
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES, WORKLOADS
from tiny import tiny_llama
from torch_strategies import TORCH_STRATEGIES
from toy_tokenizer import VOCAB, toy_tokenizer

CASES = {
    "speed": {"context_tokens": 90, "output_tokens": 5, "repeats": 1, "batch_size": 2, "text": "generated"},
    "fidelity": {"context_tokens": 90, "continuation_tokens": 5, "documents": 2, "text": "generated"},
    "retention": {"context_tokens": 420, "conversations": 1, "controls": 0, "depths": (0.0,), "compress": "every_turn"},
    "needle": {"context_tokens": 300, "samples": 1, "controls": 0, "depths": (0.0,), "answer_tokens": 2},
    "multi_turn": {"distances": (1,), "conversations": 1, "controls": 0, "alternatives": 2, "second_question": False},
}
GENERATED = {"speed": 4, "fidelity": 5}  # decode steps before what is kept is counted
AFTER_EVERY_TURN = ("retention", "multi_turn")


@pytest.mark.parametrize("workload", CASES)
@pytest.mark.parametrize("name", TORCH_STRATEGIES)
def test_what_is_kept_is_what_the_formula_says(name, workload):
    made = STRATEGIES.get(name)
    strategy = made(budget=0.3) if any(field.name == "budget" for field in fields(made)) else made()
    try:
        WORKLOADS.get(workload)(**CASES[workload]).check_strategy(strategy)
    except Unsupported as reason:
        assert "does not give" in str(reason)
        return
    session = TorchSession(tiny_llama(layers=3, vocab=VOCAB, max_positions=4096), toy_tokenizer())
    found = defaultdict(list)
    for measurement in WORKLOADS.get(workload)(**CASES[workload]).run(session, strategy, seed=0):
        found[measurement.metric].append(measurement)
    kept = {(m.layer, m.head): m.value for m in found["kept_tokens"]}
    assert len(kept) == 3 * 2
    mean = sum(kept.values()) / 6
    read = round(found["context_tokens"][-1].value)
    if workload in AFTER_EVERY_TURN:
        assert mean <= strategy.kept_tokens(read) + 1
    else:
        assert mean == strategy.kept_tokens(read, GENERATED.get(workload, 0))
    for layer in range(3):
        assert not strategy.even_heads or kept[layer, 0] == kept[layer, 1]
