"""INT8 against loops: codes, scales, error, and the logits of a decode on rounded keys and values."""

from __future__ import annotations

import pytest
import torch
from coded_llama import assert_logits_follow, half, settle_vectors
from kvfrontier.registry import STRATEGIES

INT8 = STRATEGIES.get("int8")


def naive_codes(vector):
    scale = half(max(abs(x) for x in vector) / 127)
    return [max(-127, min(127, round(x / scale))) if scale else 0 for x in vector], scale


def naive_round(vector):
    codes, scale = naive_codes(vector)
    return [code * scale for code in codes]


def vectors(head_dim=16):
    generator = torch.Generator().manual_seed(3)
    ordinary = torch.randn(40, head_dim, generator=generator, dtype=torch.float64)
    outlier = ordinary[:4].clone()
    outlier[:, 2] *= 1000
    return torch.cat([ordinary, outlier, ordinary[:4] * 1e-9, ordinary[:4] * 1e7, torch.zeros(2, head_dim).double()])


def test_codes_and_scales_are_those_of_the_loop():
    codes, scales = INT8().encode(vectors())
    for vector, code, scale in zip(vectors().tolist(), codes.tolist(), scales[:, 0].tolist(), strict=True):
        # A scale that float16 cannot hold is its largest number: then codes saturate.
        expected, of_scale = naive_codes(vector) if max(map(abs, vector)) / 127 < 65504 else (code, 65504.0)
        assert code == expected
        assert scale == of_scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_error_is_at_most_half_a_step(dtype):
    given = torch.randn(200, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    parts = INT8().encode(given)
    back = INT8().decode(parts, 64, dtype)
    assert back.dtype == dtype and parts[0].dtype == torch.int8
    step = given.abs().amax(-1, keepdim=True).double() / 127
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(dtype, 0)
    assert ((back - given).abs().double() <= step * 0.57 + given.abs().double() * rounding).all()
    assert (back != given).any()


def test_extreme_vectors_stay_finite():
    for value in (0.0, 1e-12, 6e4, 1e30, -1e30):
        back = INT8().decode(INT8().encode(torch.full((1, 8), value)), 8, torch.float32)
        assert back.isfinite().all()


@pytest.mark.parametrize("session", [{}, {"prefill": "chunked", "chunk_tokens": 7}, {"prefill": "eager"}], ids=str)
def test_logits_are_those_of_a_model_with_rounded_keys_and_values(session):
    assert_logits_follow(INT8(), settle_vectors(naive_round), prompt_tokens=23, steps=6, **session)
