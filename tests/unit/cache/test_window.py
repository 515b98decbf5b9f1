"""Scores from the last queries: against loops, across chunks, in any slot order, and in O(w n) memory."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.view import LayerView
from kvfrontier.cache.window import drop_queries, note_queries, pool_by_age, window_weights
from torch.utils._python_dispatch import TorchDispatchMode

BATCH, Q_HEADS, KV_HEADS, HEAD_DIM, SCALE = 3, 4, 2, 8, 0.3


def filled(lengths, dtype=torch.float32, seed=0):
    """A layer that holds rows of these lengths, and their queries `[batch, q_heads, longest, head_dim]`."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    queries = torch.randn(len(lengths), Q_HEADS, longest, HEAD_DIM, generator=generator).to(dtype)
    keys = torch.randn(len(lengths), KV_HEADS, longest, HEAD_DIM, generator=generator).to(dtype)
    layer = LayerCache()
    layer.append(keys, keys, torch.arange(longest).expand(len(lengths), -1), lengths)
    return layer, queries


def view(layer, queries, new, seen):
    return LayerView(
        layer_idx=0, layers=1, cache=layer, queries=queries, scale=SCALE, phase="prefill", new_tokens=new,
        seen_tokens=seen, read_tokens=seen, decoded_tokens=0, row_seeds=[0] * len(seen), rotate=None, shared={},
    )  # fmt: skip


def note_in_chunks(layer, queries, lengths, chunk, window):
    for start in range(0, max(lengths), chunk):
        new = [min(max(length - start, 0), chunk) for length in lengths]
        seen = [min(length, start + chunk) for length in lengths]
        last = view(layer, queries[:, :, start : start + chunk], new, seen)
        note_queries(last, window)
    return last


def naive_weights(layer, queries, row, q_head, rows, length):
    """Mean weight by position, one query at a time in float64."""
    head = q_head // (Q_HEADS // KV_HEADS)
    at = layer.positions[row, head].tolist()
    total = torch.zeros(length, dtype=torch.float64)
    for position in range(length - rows, length):
        slots = [slot for slot, p in enumerate(at) if 0 <= p <= position]
        scores = layer.keys[row, head, slots].double() @ queries[row, q_head, position].double() * SCALE
        for slot, weight in zip(slots, scores.softmax(0), strict=True):
            total[at[slot]] += weight / rows
    return total


@pytest.mark.parametrize("chunk", [1, 3, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_window_weights_follow_the_loop_in_any_order_of_slots(chunk, dtype):
    lengths, window, rows = [19, 40, 4], 6, [6, 3, 6]
    layer, queries = filled(lengths, dtype)
    last = note_in_chunks(layer, queries, lengths, chunk, window)
    # Some eviction and refilling in place, as decoding does: order of slots is not the order of positions.
    layer.drop(torch.tensor([[2, 5], [0, 7], [1, 3]]))
    weights = window_weights(last, rows)
    assert weights.shape == (BATCH, Q_HEADS, layer.slots) and weights.dtype == torch.float32
    for row, length in enumerate(lengths):
        for q_head in range(Q_HEADS):
            expected = naive_weights(layer, queries, row, q_head, min(rows[row], length), length)
            at = layer.used_positions()[row, q_head // 2]
            found = torch.zeros(length, dtype=torch.float64)
            found[at[at >= 0].long()] = weights[row, q_head][at >= 0].double()
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
            assert (weights[row, q_head][at < 0] == 0).all()


def test_noted_queries_are_counted_as_bytes_and_gone_when_dropped():
    layer, queries = filled([9, 9])
    note_in_chunks(layer, queries, [9, 9], 4, window=5)
    assert layer.aux_bytes() == layer.positions.nbytes + 2 * Q_HEADS * 5 * HEAD_DIM * 4 + 2 * 8
    drop_queries(layer)
    assert layer.aux_bytes() == layer.positions.nbytes


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that anything made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple) else [out]:
            if isinstance(tensor, torch.Tensor) and not tensor._is_view():
                self.elements = max(self.elements, tensor.numel())
        return out


def test_memory_is_one_tile_of_window_times_tokens():
    tokens, window = 3000, 8
    layer, queries = filled([tokens])
    last = note_in_chunks(layer, queries, [tokens], tokens, window)
    with Largest() as largest:
        window_weights(last, [window])
    assert largest.elements == tokens * window * Q_HEADS // KV_HEADS


@pytest.mark.parametrize("pooling", ["max", "avg"])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_pooling_runs_along_positions_and_takes_nothing_from_the_window(pooling, kernel):
    positions = torch.tensor([[[8, 0, 5, 9, 2, -1, 3]]])
    weights = torch.tensor([[[[0.5, 0.1, 0.7, 0.9, 0.3, 0.8, 0.2]]]])
    older = (positions >= 0) & (positions < 8)
    found = pool_by_age(weights, positions, older, kernel, pooling)[0, 0, 0]
    by_age = {0: 0.1, 2: 0.3, 3: 0.2, 5: 0.7}
    for index, position in enumerate(by_age):
        near = list(by_age.values())[max(0, index - kernel // 2) : index + kernel // 2 + 1]
        slot = positions[0, 0].tolist().index(position)
        expected = max(near) if pooling == "max" else sum(near) / kernel
        assert found[slot].item() == pytest.approx(expected)
