"""Exact column sums against the materialised matrix in float64."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache import scores
from kvfrontier.cache.attention import attend_block, causal_weights
from kvfrontier.cache.scores import RowWeights, column_sums


def random_qkv(batch=2, q_heads=6, kv_heads=2, rows=517, length=None, head_dim=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    length = length or rows

    def draw(heads, n):
        return torch.randn(batch, heads, n, head_dim, generator=generator) * 2

    return draw(q_heads, rows), draw(kv_heads, length), draw(kv_heads, length)


def materialised(queries, keys, scale, offset, decay=1.0, since=None):
    group = queries.shape[1] // keys.shape[1]
    scores = queries.double() @ keys.double().repeat_interleave(group, 1).transpose(2, 3) * scale
    rows, length = scores.shape[2:]
    visible = torch.ones(rows, length, dtype=torch.bool).tril(offset)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    row = torch.arange(rows)
    if since is not None:
        weights = weights * (row[:, None] >= since.repeat_interleave(group, 1)[:, :, None])
    return (weights * decay ** (rows - 1 - row.double())[:, None]).sum(2)


@pytest.mark.parametrize("scoring", ["lse", "two_pass", "eager"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize(("rows", "length"), [(517, 517), (33, 600), (1, 9), (256, 256), (300, 812)])
def test_column_sums_equal_the_materialised_matrix(scoring, kernel, rows, length):
    queries, keys, values = random_qkv(rows=rows, length=length)
    out, mass = attend_block(queries, keys, values, 0.25, length - rows, kernel, scoring)
    torch.testing.assert_close(mass.double(), materialised(queries, keys, 0.25, length - rows), atol=1e-4, rtol=1e-5)
    exact = causal_weights(queries, keys, 0.25, length - rows) @ values.repeat_interleave(3, 1)
    torch.testing.assert_close(out, exact, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kv_heads", [1, 2, 6], ids=["MQA", "GQA", "MHA"])
def test_each_query_gives_away_a_weight_of_one(kv_heads):
    queries, keys, _ = random_qkv(kv_heads=kv_heads, rows=300)
    mass = column_sums(queries, keys, 0.25, 0)
    torch.testing.assert_close(mass.sum(-1), torch.full((2, 6), 300.0), atol=1e-3, rtol=0)
    assert (mass >= 0).all()


def test_the_last_key_is_seen_by_the_last_query_alone():
    queries, keys, _ = random_qkv(rows=90)
    diagonal = causal_weights(queries, keys, 0.25, 0)[:, :, -1, -1]
    torch.testing.assert_close(column_sums(queries, keys, 0.25, 0)[..., -1], diagonal, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("tile_rows", "tile_keys"), [(3, 1), (21, 50), (768, 256), (4096, 4096)])
def test_tile_sizes_do_not_matter(monkeypatch, tile_rows, tile_keys):
    queries, keys, _ = random_qkv(rows=131)
    expected = materialised(queries, keys, 0.25, 0)
    monkeypatch.setattr(scores, "TILE_ROWS", tile_rows)
    monkeypatch.setattr(scores, "TILE_KEYS", tile_keys)
    torch.testing.assert_close(column_sums(queries, keys, 0.25, 0).double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("scoring", ["lse", "two_pass", "eager"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize(("rows", "length"), [(700, 700), (33, 600), (300, 1100)])
@pytest.mark.parametrize("decay", [1.0, 0.98])
@pytest.mark.parametrize("delay", [None, 0, 40])
def test_rows_may_count_unequally(scoring, kernel, rows, length, decay, delay):
    queries, keys, values = random_qkv(rows=rows, length=length)
    since = None
    if delay is not None:  # kept tokens have gaps between them, and no order
        generator = torch.Generator().manual_seed(1)
        old = torch.randint(-900, 0, (2, 2, length - rows), generator=generator)
        since = torch.cat((old, torch.arange(rows).expand(2, 2, rows)), 2) + delay
    weights = RowWeights(decay, since)
    out, mass = attend_block(queries, keys, values, 0.25, length - rows, kernel, scoring, weights)
    expected = materialised(queries, keys, 0.25, length - rows, decay, since)
    torch.testing.assert_close(mass.double(), expected, atol=1e-4, rtol=1e-5)
    plain, _ = attend_block(queries, keys, values, 0.25, length - rows, kernel, None)
    torch.testing.assert_close(out, plain, atol=2e-5, rtol=1e-4)


def test_decayed_sums_are_carried_on_from_chunk_to_chunk():
    queries, keys, _ = random_qkv(rows=150)
    summed = torch.zeros(2, 6, 150)
    for start, stop in ((0, 1), (1, 64), (64, 149), (149, 150)):
        part = column_sums(queries[:, :, start:stop], keys[:, :, :stop], 0.25, start, weights=RowWeights(0.9))
        summed *= 0.9 ** (stop - start)
        summed[:, :, :stop] += part
    torch.testing.assert_close(summed.double(), materialised(queries, keys, 0.25, 0, 0.9), atol=1e-4, rtol=1e-5)


def test_chunks_add_up_to_the_whole():
    queries, keys, values = random_qkv(rows=150)
    whole = column_sums(queries, keys, 0.25, 0)
    summed = torch.zeros_like(whole)
    for start, stop in ((0, 1), (1, 64), (64, 149), (149, 150)):
        part = (queries[:, :, start:stop], keys[:, :, :stop], values[:, :, :stop])
        _, mass = attend_block(*part, 0.25, start, "sdpa", "lse")
        summed[:, :, :stop] += mass
    torch.testing.assert_close(summed, whole, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_scored_in_float32(dtype):
    queries, keys, values = (tensor.to(dtype) for tensor in random_qkv(rows=200))
    _, mass = attend_block(queries, keys, values, 0.25, 0, "sdpa", "two_pass")
    assert mass.dtype == torch.float32
    torch.testing.assert_close(mass.double(), materialised(queries, keys, 0.25, 0), atol=1e-3, rtol=1e-3)
