"""FP8 against a table of all 256 numbers: bytes, saturation, and logits of a decode."""

from __future__ import annotations

import math

import pytest
import torch
from coded_llama import assert_logits_follow, half, settle_vectors
from kvfrontier.registry import STRATEGIES

FP8 = STRATEGIES.get("fp8")
FORMATS = {"e4m3": (4, 3, 7, 448.0), "e5m2": (5, 2, 15, 57344.0)}  # exponent and mantissa bits, bias, largest


def table(name):
    """(byte, value) of every non-negative finite number."""
    _, mantissa_bits, bias, largest = FORMATS[name]
    found = []
    for byte in range(128):
        exponent, mantissa = byte >> mantissa_bits, byte % 2**mantissa_bits
        fraction = mantissa / 2**mantissa_bits + (1 if exponent else 0)
        value = fraction * 2.0 ** (max(exponent, 1) - bias)
        if value <= largest:
            found.append((byte, value))
    return found


def naive_float(x, numbers):
    """The byte of the nearest number (ties: even), and the number."""
    byte, value = min(numbers, key=lambda entry: (abs(entry[1] - min(abs(x), numbers[-1][1])), entry[0] % 2))
    return byte + (128 if math.copysign(1, x) < 0 else 0), math.copysign(value, x)


def naive_scale(vector, scale, name):
    return half(max(map(abs, vector)) / FORMATS[name][3]) if scale == "token_head" else 1.0


def naive_round(name, scale):
    numbers = table(name)

    def round_vector(vector):
        s = naive_scale(vector, scale, name)
        return [naive_float(x / (s or 1), numbers)[1] * s for x in vector]

    return round_vector


SETTINGS = [("e4m3", "tensor"), ("e4m3", "token_head"), ("e5m2", "tensor")]


@pytest.mark.parametrize(("name", "scale"), SETTINGS)
def test_bytes_are_those_of_the_nearest_number_in_the_table(name, scale):
    given = torch.randn(30, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    given[:5] *= 1e-3
    given[5:10] *= 300
    given[10:12] *= 1e6
    parts = FP8(format=name, scale=scale).encode(given)
    numbers = table(name)
    for row, vector in enumerate(given.tolist()):
        s = naive_scale(vector, scale, name)
        assert parts[0][row].tolist() == [naive_float(x / s, numbers)[0] for x in vector]
        if scale == "token_head":
            assert parts[1][row].tolist() == [s]


@pytest.mark.parametrize("name", FORMATS)
def test_large_numbers_saturate(name):
    strategy, largest = FP8(format=name), FORMATS[name][3]
    given = torch.tensor([[1e9, -1e9, largest * 1.01, 0.0]])
    back = strategy.decode(strategy.encode(given), 4, torch.float32)
    assert back.tolist() == [[largest, -largest, largest, 0.0]]


def test_a_calibrated_scale_stretches_the_range():
    strategy = FP8(tensor_scale=4.0)
    back = strategy.decode(strategy.encode(torch.tensor([[1000.0, 3.0]])), 2, torch.float32)
    assert back.tolist() == [[1024.0, 3.0]]


@pytest.mark.parametrize(("name", "scale"), SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_relative_error_is_that_of_the_mantissa(name, scale, dtype):
    given = (torch.randn(100, 64, generator=torch.Generator().manual_seed(1)) + 3).to(dtype)
    strategy = FP8(format=name, scale=scale)
    back = strategy.decode(strategy.encode(given), 64, dtype).double()
    assert ((back - given.double()).abs() <= given.double().abs() * 2.0 ** -(FORMATS[name][1] + 1) * 1.03 + 0.01).all()
    assert (back != given.double()).any()


def test_zero_vectors_are_safe():
    strategy = FP8(scale="token_head")
    assert (strategy.decode(strategy.encode(torch.zeros(2, 8)), 8, torch.float32) == 0).all()


@pytest.mark.parametrize(
    "wrong", [{"format": "e5m2", "scale": "token_head"}, {"scale": "token_head", "tensor_scale": 2.0}], ids=str
)
def test_scales_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="scale"):
        FP8(**wrong)


@pytest.mark.parametrize(("name", "scale"), SETTINGS)
def test_logits_are_those_of_a_model_with_rounded_keys_and_values(name, scale):
    strategy = FP8(format=name, scale=scale)
    assert_logits_follow(strategy, settle_vectors(naive_round(name, scale)), prompt_tokens=19, steps=4)
