"""The same model and prompt under kvpress 0.5.5 (tests/kvpress_fixtures) and here: the same tokens stay.

How its settings become ours: `compression_ratio` r keeps int(n (1 - r)) of n tokens, our `budget` as a count;
`window_size` is `window_tokens`, `n_sink` is `num_sinks`. kvpress pools by average (`pooling: avg`) and takes the mean
over a group. It compresses at prefill alone, so that is what is compared.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from kvpress_model import LAYERS, TOKENS, same_llama, same_prompt

FIXTURE = json.loads((Path(__file__).parent / "kvpress.json").read_text())
AVERAGE = {"pooling": "avg", "kernel_size": 5}
OURS = {
    "snapkv": ("snapkv", {"budget": 16, "window_tokens": 6, **AVERAGE}),
    "snapkv_unpooled": ("snapkv", {"budget": 32, "window_tokens": 8, "kernel_size": 1}),
    "streaming_llm": ("streaming_llm", {"budget": 16, "num_sinks": 4}),
    "tova": ("tova", {"budget": 16}),
    # kvpress draws its line through all that a layer keeps, K / beta in the last; the paper and we through what is
    # chosen beside the window, w + (K - w) / beta. K 32, w 4: its beta 4 and our beta 7 both end at 8 tokens.
    "pyramid_kv": ("pyramid_kv", {"budget": 32, "window_tokens": 4, "beta": 7, **AVERAGE}),
}


@pytest.fixture(scope="module")
def model():
    return same_llama()


def prefilled(model, strategy):
    sequences = TorchSession(model).open(strategy)
    sequences.prefill([same_prompt()])
    return sequences


@pytest.mark.parametrize("press", OURS)
def test_the_same_tokens_stay(model, press):
    name, fields = OURS[press]
    theirs = FIXTURE["kept"][press]
    ours = [layer[0].tolist() for layer in prefilled(model, STRATEGIES.get(name)(**fields)).kept_positions()]
    ours = [[[position for position in head if position >= 0] for head in layer] for layer in ours]
    assert ours == theirs
    assert len(ours) == LAYERS and any(head != list(range(TOKENS - len(head), TOKENS)) for head in ours[0])


def test_pyramid_budgets_differ_only_by_where_the_window_counts():
    """With one beta, kvpress's last layer has K / beta tokens, ours (and the authors') w + (K - w) // beta."""
    kept = [len(layer[0]) for layer in FIXTURE["kept"]["pyramid_kv"]]
    assert kept == [56, 40, 24, 8]
    pyramid = STRATEGIES.get("pyramid_kv")
    assert pyramid(budget=32, window_tokens=4, beta=7).layer_budgets(TOKENS, LAYERS) == kept
    assert pyramid(budget=32, window_tokens=4, beta=4).layer_budgets(TOKENS, LAYERS) == [53, 39, 25, 11]


def test_observed_attention_is_h2os_score_per_row_and_query_head(model):
    """Its score: column sum / rows that see the key, mean over the group; ours: S summed over the group."""
    sequences = prefilled(model, STRATEGIES.get("h2o")(budget=1.0, score_norm="mean_rows"))
    rows = torch.arange(TOKENS, 0, -1)
    for layer, theirs in zip(sequences.cache.layers, FIXTURE["observed_attention"], strict=True):
        ours = layer.aux["mass"][0, :, :TOKENS] / rows / 2
        torch.testing.assert_close(ours, torch.tensor(theirs), atol=1e-5, rtol=1e-4)
