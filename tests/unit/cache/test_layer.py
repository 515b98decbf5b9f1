"""The layer store: ragged appends, gathers, evictions in place, bytes."""

from __future__ import annotations

import torch
from kvfrontier.cache.layer import LayerCache

HEAD_DIM = 4


def tokens(batch, kv_heads, start, new):
    """Keys that name their own position and head; positions `[batch, new]`."""
    positions = torch.arange(start, start + new).expand(batch, new)
    keys = positions[:, None, :, None] + 1000.0 * torch.arange(kv_heads)[None, :, None, None]
    keys = keys.expand(batch, kv_heads, new, HEAD_DIM).contiguous()
    return keys, -keys, positions


def filled(batch=2, kv_heads=2, new=6, capacity=0, lengths=None):
    layer = LayerCache()
    layer.target_capacity = capacity
    layer.append(*tokens(batch, kv_heads, 0, new), lengths or [new] * batch)
    return layer


def assert_consistent(layer):
    """Every used slot's key and value belong to its position; unused slots are empty; counts tell the truth."""
    positions = layer.used_positions()
    used = torch.arange(layer.slots) < layer.counts[..., None]
    assert ((positions >= 0) == used).all()
    assert (layer.positions[:, :, layer.slots :] == -1).all()
    heads = 1000.0 * torch.arange(positions.shape[1])[None, :, None]
    for row, head in torch.cartesian_prod(torch.arange(positions.shape[0]), torch.arange(positions.shape[1])).tolist():
        mask = used[row, head]
        expected = (positions[row, head] + heads[0, head])[mask]
        assert torch.equal(layer.keys[row, head, : layer.slots, 0][mask], expected)
        assert torch.equal(layer.values[row, head, : layer.slots, -1][mask], -expected)


def test_padding_never_enters_the_cache():
    layer = filled(lengths=[6, 3])
    assert layer.counts.tolist() == [[6, 6], [3, 3]]
    layer.append(*tokens(2, 2, 6, 2), [1, 2])
    assert layer.counts.tolist() == [[7, 7], [5, 5]]
    assert layer.kept_positions()[1, 0].tolist() == [0, 1, 2, 6, 7, -1, -1]
    assert_consistent(layer)


def test_reserved_slots_are_filled_without_moving_the_tensors():
    layer = filled(capacity=9)
    address = layer.keys.data_ptr()
    layer.append(*tokens(2, 2, 6, 3), [3, 3])
    assert layer.keys.data_ptr() == address
    layer.append(*tokens(2, 2, 9, 1), [1, 1])
    assert layer.capacity > 9
    assert_consistent(layer)


def test_unreserved_decode_steps_do_not_copy_the_cache_each_time():
    layer = filled(new=40)
    addresses = set()
    for step in range(40):
        layer.append(*tokens(2, 2, 40 + step, 1), [1, 1])
        addresses.add(layer.keys.data_ptr())
    assert len(addresses) <= 5
    assert_consistent(layer)


def test_heads_may_keep_different_tokens_and_different_numbers_of_them():
    layer = filled()
    layer.auxiliary("mass")[:, :, :6] = layer.positions.float()
    slots = torch.tensor([[[0, 2, 5], [1, 3, 0]], [[4, 5, 0], [0, 1, 2]]])
    layer.keep(slots, torch.tensor([[3, 2], [2, 3]]))
    assert layer.kept_positions().tolist() == [[[0, 2, 5], [1, 3, -1]], [[4, 5, -1], [0, 1, 2]]]
    assert layer.aux["mass"][0, 0].tolist() == [0, 2, 5]
    layer.append(*tokens(2, 2, 6, 1), [1, 1])
    assert layer.kept_positions()[0].tolist() == [[0, 2, 5, 6], [1, 3, 6, -1]]
    assert_consistent(layer)


def test_a_prefill_stores_only_what_is_kept():
    layer = LayerCache()
    layer.target_capacity = 4
    keys, values, positions = tokens(1, 2, 0, 50)
    layer.borrow(keys, values, positions, [50])
    layer.keep(torch.tensor([[[1, 7, 49], [0, 48, 49]]]), torch.tensor([[3, 3]]))
    assert layer.capacity == 4
    assert layer.reserved_bytes() == layer.keys.nbytes + layer.values.nbytes == 2 * 2 * 4 * HEAD_DIM * 4
    assert layer.used_bytes() == 2 * 2 * 3 * HEAD_DIM * 4
    assert_consistent(layer)


def test_what_a_strategy_leaves_borrowed_is_copied():
    layer = LayerCache()
    layer.target_capacity = 8
    keys, values, positions = tokens(2, 1, 0, 5)
    layer.borrow(keys, values, positions, [5, 2])
    layer.auxiliary("mass")[:] = 3
    layer.settle()
    keys.zero_()
    assert layer.capacity == 8
    assert layer.aux["mass"].shape == (2, 1, 8)
    assert_consistent(layer)


def test_dropping_moves_the_newest_token_and_its_auxiliary_values_into_the_hole():
    layer = filled(capacity=7)
    layer.auxiliary("mass")[:, :, :6] = layer.positions[:, :, :6].float()
    address = layer.keys.data_ptr()
    layer.drop(torch.tensor([[0, 3], [5, 2]]))
    assert layer.kept_positions()[0].tolist() == [[1, 2, 3, 4, 5], [0, 1, 2, 4, 5]]
    assert layer.kept_positions()[1].tolist() == [[0, 1, 2, 3, 4], [0, 1, 3, 4, 5]]
    assert torch.equal(layer.aux["mass"][:, :, :5], layer.positions[:, :, :5].float())
    assert layer.keys.data_ptr() == address
    assert_consistent(layer)


def test_dropping_spares_the_rows_that_are_within_their_budget():
    layer = filled(lengths=[6, 4])
    layer.drop(torch.tensor([[1, 1], [1, 1]]), torch.tensor([[True, True], [False, False]]))
    assert layer.counts.tolist() == [[5, 5], [4, 4]]
    assert layer.kept_positions()[1, 0].tolist() == [0, 1, 2, 3, -1]
    assert_consistent(layer)


def test_a_fork_shares_nothing():
    layer = filled(capacity=9)
    layer.auxiliary("mass")[:] = 1
    layer.extras["sink_keys"] = torch.ones(2, 2, 1, HEAD_DIM)
    fork = layer.fork()
    fork.append(*tokens(2, 2, 6, 1), [1, 1])
    fork.drop(torch.zeros(2, 2, dtype=torch.long))
    fork.aux["mass"].zero_()
    fork.extras["sink_keys"].zero_()
    assert layer.kept_positions()[0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert layer.aux["mass"].min() == 1
    assert layer.extras["sink_keys"].min() == 1
    assert fork.capacity == layer.capacity
    assert_consistent(layer)
    assert_consistent(fork)


def test_auxiliary_bytes_are_those_of_the_tensors():
    layer = filled(capacity=9)
    assert layer.aux_bytes() == layer.positions.nbytes
    layer.auxiliary("mass")
    layer.extras["sink_keys"] = torch.ones(3, dtype=torch.float64)
    assert layer.aux_bytes() == 2 * layer.positions.nbytes + 24
