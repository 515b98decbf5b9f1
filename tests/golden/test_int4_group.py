"""Group-wise 4 bit against loops: packed codes, scales, minima, error, and logits of a decode."""

from __future__ import annotations

import pytest
import torch
from coded_llama import assert_logits_follow, half, settle_vectors
from kvfrontier.registry import STRATEGIES

INT4 = STRATEGIES.get("int4_group")


def naive_group(group):
    """Codes, scale, minimum of one group."""
    scale, low = half((max(group) - min(group)) / 15), half(min(group))
    return [max(0, min(15, round((x - low) / (scale or 1)))) for x in group], scale, low


def naive_codes(vector, group_size):
    """Bytes, scales and minima of one vector; the first of two codes is the low nibble."""
    packed, scales, lows = [], [], []
    for start in range(0, len(vector), group_size):
        codes, scale, low = naive_group(vector[start : start + group_size])
        packed += [a + 16 * b for a, b in zip(codes[::2], [*codes[1::2], 0][: len(codes[::2])], strict=True)]
        scales.append(scale)
        lows.append(low)
    return packed, scales, lows


def naive_round(group_size):
    def round_vector(vector):
        back = []
        for start in range(0, len(vector), group_size):
            codes, scale, low = naive_group(vector[start : start + group_size])
            back += [code * scale + low for code in codes]
        return back

    return round_vector


def test_packed_codes_scales_and_minima_are_those_of_the_loop():
    given = torch.randn(60, 48, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given[:5, 3] *= 300
    given[5:8, :16] = 0.7
    packed, scales, lows = INT4(group_size=16).encode(given)
    assert packed.dtype == torch.uint8 and packed.shape == (60, 24)
    for row, vector in enumerate(given.tolist()):
        assert (packed[row].tolist(), scales[row].tolist(), lows[row].tolist()) == naive_codes(vector, 16)


@pytest.mark.parametrize(("head_dim", "size"), [(8, 8), (64, 64), (80, 40), (96, 48), (128, 64), (15, 15), (7, 7)])
def test_a_group_never_spills_over_and_bytes_follow(head_dim, size):
    parts = INT4().encode(torch.randn(3, head_dim, generator=torch.Generator().manual_seed(head_dim)))
    assert parts[1].shape == (3, head_dim // size)
    assert sum(part[0].nbytes for part in parts) == INT4().vector_bytes(head_dim)
    back = INT4().decode(parts, head_dim, torch.float32)
    assert back.shape == (3, head_dim)


def test_the_paper_counts_four_and_a_half_bits():
    assert INT4().vector_bytes(128) * 8 / 128 == 4.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_error_is_at_most_half_a_step(dtype):
    given = torch.randn(200, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    back = INT4().decode(INT4().encode(given), 64, dtype).double()
    exact = given.double()
    step = (exact.amax(-1, keepdim=True) - exact.amin(-1, keepdim=True)) / 15
    assert back.unique().numel() > 16 and ((back - exact).abs() <= step * 0.5 + 0.02).all()


def test_constant_and_extreme_groups_are_safe():
    for value in (0.0, 1.0, -3.3, 1e-12, 30000.7):
        back = INT4().decode(INT4().encode(torch.full((2, 64), value)), 64, torch.float32)
        torch.testing.assert_close(back, torch.full((2, 64), value), rtol=1e-3, atol=1e-7)
    wild = torch.tensor([[1e30, -1e30] * 32])
    assert INT4().decode(INT4().encode(wild), 64, torch.float32).isfinite().all()


@pytest.mark.parametrize("session", [{}, {"prefill": "chunked", "chunk_tokens": 7}], ids=str)
def test_logits_are_those_of_a_model_with_rounded_keys_and_values(session):
    strategy = INT4(group_size=8)
    assert_logits_follow(strategy, settle_vectors(naive_round(8)), prompt_tokens=23, steps=6, **session)
