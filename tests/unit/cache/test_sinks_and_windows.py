"""Attention beside learnt sinks, and within windows, against a softmax that is written out."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache import windowed
from kvfrontier.cache.attention import attend_block, attend_decode
from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.scores import RowWeights, row_lse
from kvfrontier.cache.window import note_queries, window_weights
from kvfrontier.cache.windowed import ModelWindow, attend_window
from test_window import filled, view

BATCH, Q_HEADS, KV_HEADS, DIM, VALUE_DIM = 2, 6, 2, 8, 5
SCALE = 0.7


def made(rows, length, value_dim=DIM, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (BATCH, Q_HEADS, rows, DIM),
        (BATCH, KV_HEADS, length, DIM),
        (BATCH, KV_HEADS, length, value_dim),
        (Q_HEADS,),
    )
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def naive(queries, keys, values, sinks, visible):
    """Output and weights; visible: `[rows, length]`, or with batch and heads in front."""
    keys, values = (part.repeat_interleave(Q_HEADS // KV_HEADS, 1) for part in (keys, values))
    scores = (queries @ keys.transpose(2, 3) * SCALE).masked_fill(~visible, -torch.inf)
    mass = scores.exp()
    beside = 0 if sinks is None else sinks.exp()[:, None, None]
    weights = mass / (mass.sum(-1, keepdim=True) + beside)
    return weights @ values, weights


def causal(rows, length):
    return torch.ones(rows, length, dtype=torch.bool).tril(length - rows)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("scoring", ["lse", "two_pass", "eager", None])
@pytest.mark.parametrize(("rows", "length", "value_dim"), [(37, 37, DIM), (9, 30, DIM), (37, 37, VALUE_DIM)])
def test_a_block_beside_sinks(kernel, scoring, rows, length, value_dim):
    queries, keys, values, sinks = made(rows, length, value_dim)
    expected, weights = naive(queries, keys, values, sinks, causal(rows, length))
    decayed = RowWeights(decay=0.9)
    out, mass = attend_block(queries, keys, values, SCALE, length - rows, kernel, scoring, decayed, sinks)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
    if scoring is None:
        assert mass is None
    else:
        powers = 0.9 ** torch.arange(rows - 1, -1, -1, dtype=torch.float64)
        torch.testing.assert_close(mass.double(), (weights * powers[:, None]).sum(2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("with_mass", [True, False])
def test_a_decode_step_beside_sinks(with_mass):
    queries, keys, values, sinks = made(1, 20)
    valid = torch.ones(BATCH, KV_HEADS, 20, dtype=torch.bool)
    valid[1, :, 15:] = False
    expected, weights = naive(queries, keys, values, sinks, valid.repeat_interleave(3, 1)[:, :, None])
    out, mass = attend_decode(queries, keys, values, SCALE, valid, with_mass, sinks)
    torch.testing.assert_close(out, expected)
    assert (mass is None) != with_mass
    if with_mass:
        torch.testing.assert_close(mass.double(), weights[:, :, 0], atol=1e-6, rtol=1e-6)
        assert float(mass.sum(-1).max()) < 1


def test_the_log_sum_exp_of_rows():
    queries, keys, _, _ = made(9, 30)
    scores = queries @ keys.repeat_interleave(3, 1).transpose(2, 3) * SCALE
    expected = scores.masked_fill(~causal(9, 30), -torch.inf).logsumexp(-1)
    torch.testing.assert_close(row_lse(queries, keys, SCALE, 21).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows_a_tile", [256, 7])
@pytest.mark.parametrize("with_sinks", [True, False])
@pytest.mark.parametrize("window", [3, 11, 60])
def test_windows_in_tiles_and_in_any_order_of_slots(monkeypatch, window, with_sinks, rows_a_tile):
    monkeypatch.setattr(windowed, "ROWS", rows_a_tile)
    queries, keys, values, sinks = made(25, 40, VALUE_DIM)
    sinks = sinks if with_sinks else None
    asked = torch.arange(15, 40).expand(BATCH, -1)
    at = torch.arange(40)
    visible = torch.stack([(at <= ask) & (at > ask - window) for ask in range(15, 40)])
    expected, _ = naive(queries, keys, values, sinks, visible)
    shuffled = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    stored = shuffled.expand(BATCH, KV_HEADS, -1)
    out = attend_window(queries, keys[:, :, shuffled], values[:, :, shuffled], SCALE, asked, stored, window, sinks)
    torch.testing.assert_close(out, expected)
    whole = torch.arange(40).expand(BATCH, KV_HEADS, -1)
    queries = made(40, 40, VALUE_DIM)[0]
    in_order = [
        attend_window(queries, keys, values, SCALE, whole[:, 0], whole, window, sinks, in_order=order)
        for order in (True, False)
    ]
    torch.testing.assert_close(*in_order)


def test_a_window_holds_its_newest_tokens_by_blocks_and_by_steps():
    layer, model, seen = LayerCache(), ModelWindow(5), [0, 0]
    for lengths in ((9, 3), (1, 1), (1, 1), (1, 1), (4, 2)):
        width = max(lengths)
        positions = torch.tensor(seen)[:, None] + torch.arange(width)
        new = positions[:, None, :, None].expand(2, 1, width, 1).double()
        layer.append(new, new, positions, lengths)
        seen = [at + length for at, length in zip(seen, lengths, strict=True)]
        model.trim(layer)
        for row, total in enumerate(seen):
            kept = [position for position in layer.kept_positions()[row, 0].tolist() if position >= 0]
            assert kept == list(range(max(0, total - 4), total)) and len(kept) == model.kept_tokens(total)
            slots = layer.used_positions()[row, 0]
            assert torch.equal(layer.used()[0][row, 0, : len(kept), 0], slots[: len(kept)].double())


def test_a_window_of_queries_scores_beside_sinks():
    """SnapKV's scores: what a sink takes is nobody's."""
    layer, queries = filled([20, 20, 20], dtype=torch.float64)
    seen, sinks = [20] * 3, torch.tensor([0.5, -1.0, 2.0, 0.0])
    asked = view(layer, queries, seen, seen)
    asked.sinks = sinks
    note_queries(asked, 1)
    found = window_weights(asked, [1, 1, 1])
    keys = layer.used()[0].repeat_interleave(2, 1)
    mass = ((queries[:, :, -1:] @ keys.transpose(2, 3))[:, :, 0] * asked.scale).exp()
    expected = mass / (mass.sum(-1, keepdim=True) + sinks.exp()[:, None])
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
