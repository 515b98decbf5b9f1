"""The base of eviction policies: ties, protection, intervals across turns, and heads that keep different numbers."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.parameters import settings
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies._eviction import Eviction
from kvfrontier.strategies.base import Strategy
from pydantic import ValidationError
from reference import masked_forward
from tiny import random_prompts, tiny_llama


@settings
class Indifferent(Eviction):
    """All tokens are worth the same."""

    def scores(self, view):
        return torch.zeros(view.cache.used_positions().shape)


@settings
class Uneven(Strategy):
    """Head h of two keeps the last 5 + 9 h tokens of a prefill: counts differ within a row, as in Ada-KV."""

    needs = frozenset({"attention_mass"})

    def after_prefill(self, view):
        counts = view.cache.counts
        if counts[0, 0] == counts[0, 1]:
            kept = torch.tensor([[5, 14]] * len(counts)).minimum(counts)
            slots = counts[..., None] - kept[..., None] + torch.arange(int(kept.max()))
            view.cache.keep(slots.minimum(counts[..., None] - 1), kept)


@pytest.mark.parametrize("name", [n for n in STRATEGIES.names() if issubclass(STRATEGIES.get(n), Eviction)])
def test_no_budget_is_refused_where_nothing_else_says_how_much_stays(name):
    try:
        strategy = STRATEGIES.get(name)(budget=None)
    except ValidationError as error:
        assert "budget" in str(error)
    else:
        assert 0 < strategy.kept_tokens(100) < 100


def test_equal_scores_keep_the_older_token():
    strategy = Indifferent(budget=100)
    sequences = TorchSession(tiny_llama(layers=1)).open(strategy)
    sequences.prefill(random_prompts([700]))
    first_hundred = torch.arange(100).expand(1, 2, 100)
    assert torch.equal(sequences.kept_positions()[0], first_hundred)
    for token in (3, 4, 5):
        sequences.decode([token])
        assert torch.equal(sequences.kept_positions()[0], first_hundred)


def test_the_eviction_interval_starts_again_with_each_turn():
    strategy = STRATEGIES.get("h2o")(budget=10, decode_evict="interval", evict_interval=5)
    sequences = TorchSession(tiny_llama(layers=1)).open(strategy)
    sequences.prefill(random_prompts([30]))
    counts = []
    for turn in range(2):
        if turn:
            sequences.extend(random_prompts([8]))
        for token in range(3 if turn == 0 else 6):
            sequences.decode([3 + token])
            counts.append(sequences.cache.layers[0].slots)
    assert counts == [11, 12, 13, 11, 12, 13, 14, 10, 11]


def test_heads_with_different_counts_attend_to_what_each_has():
    model = tiny_llama(layers=2)
    prompt, turn, generated = random_prompts([40, 7, 4], seed=7)
    sequences = TorchSession(model).open(Uneven())
    total = 40 + 7 + 4
    mask = torch.ones(1, 2, total, total, dtype=torch.bool).tril()
    mask[:, 0, 40:, : 40 - 5] = False
    mask[:, 1, 40:, : 40 - 14] = False
    logits = [sequences.prefill([prompt]), sequences.extend([turn]), *(sequences.decode([t]) for t in generated)]
    expected = masked_forward(model, [*prompt, *turn, *generated], [mask, mask])
    torch.testing.assert_close(torch.cat(logits), expected[[39, 46, 47, 48, 49, 50]], atol=1e-4, rtol=1e-4)
    assert sequences.cache.layers[1].counts.tolist() == [[5 + 11, 14 + 11]]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"budget": 0}, "share in"),
        ({"budget": 1.5}, "share in"),
        ({"budget": float("nan")}, "share in"),
        ({"budget": "0.3"}, "without quotes"),
        ({"heavy_ratio": 0.1, "budget": 0.2}, "exactly one of budget"),
        ({"budget": None}, "exactly one of budget"),
        ({"heavy_ratio": 0.6}, "less than or equal to 0.5"),
        ({"heavy_ratio": 0.1, "sinks": 4}, "leave recent_share and sinks alone"),
        ({"recent": 3}, "Unexpected keyword"),
    ],
)
def test_wrong_h2o_parameters_are_refused(params, message):
    with pytest.raises(ValidationError, match=message):
        STRATEGIES.get("h2o")(**params)


def test_the_heavy_ratio_alone_replaces_the_budget():
    strategy = STRATEGIES.get("h2o")(heavy_ratio=0.1)
    assert strategy.budget is None
    assert strategy.kept_tokens(100) == 20
    assert strategy.recent_tokens(20) == 10
