"""KIVI against loops: which tokens are in codes, the codes, and the logits of a decode."""

from __future__ import annotations

import pytest
import torch
from coded_llama import assert_logits_follow, half
from kvfrontier.cache.channel_coded import ChannelCodedLayer
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from tiny import random_prompts, tiny_llama

KIVI = STRATEGIES.get("kivi")
SMALL = {"group_size": 4, "residual_tokens": 8}


def naive_group(group, bits):
    """Codes, scale, zero of one group."""
    levels = 2**bits - 1
    scale, zero = half((max(group) - min(group)) / levels), half(min(group))
    return [max(0, min(levels, round((x - zero) / (scale or 1)))) for x in group], scale, zero


def naive_round(group, bits):
    codes, scale, zero = naive_group(group, bits)
    return [code * scale + zero for code in codes]


def settle(bits, group, residual):
    """Round the keys of full blocks of `residual` tokens by channel, and the values of all but the last `residual`."""

    def act(llama, entries, before):
        first, last = before - before % residual, len(entries) - len(entries) % residual
        for start in range(first, last, group):
            part = entries[start : start + group]
            columns = [naive_round(list(channel), bits) for channel in zip(*llama.rotated_keys(part), strict=True)]
            llama.put_back(part, list(zip(*columns, strict=True)), [entry.value.tolist() for entry in part])
        for entry in entries[max(0, before - residual) : max(0, len(entries) - residual)]:
            value = entry.value.tolist()
            rounded = [x for at in range(0, len(value), group) for x in naive_round(value[at : at + group], bits)]
            entry.value = torch.tensor(rounded, dtype=torch.float64)

    return act


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("prompt_tokens", [5, 8, 21, 32])
def test_logits_are_those_of_a_model_with_rounded_keys_and_values(bits, prompt_tokens):
    assert_logits_follow(KIVI(bits=bits, **SMALL), settle(bits, 4, 8), prompt_tokens, steps=11)


@pytest.mark.parametrize("session", [{"prefill": "chunked", "chunk_tokens": 3}, {"prefill": "eager"}], ids=str)
def test_each_prefill_mode_codes_the_same(session):
    assert_logits_follow(KIVI(**SMALL), settle(2, 4, 8), prompt_tokens=21, steps=3, turn=13, **session)


def test_a_head_is_coded_in_smaller_groups_where_the_group_does_not_divide_it():
    strategy = KIVI(group_size=16, residual_tokens=16)
    sequences = TorchSession(tiny_llama(head_dim=24)).open(strategy)
    sequences.prefill(random_prompts([40]))
    assert sequences.cache.layers[0].value_parts[1].shape[3] == 2, "two groups of 12 channels"
    assert sequences.bytes_by_metric()["kv_device_bytes"] == strategy.kv_bytes(sequences.session.spec, 4, 40)


def filled(tokens, bits=2, capacity=0):
    """A settled layer and the keys and values that went in."""
    generator = torch.Generator().manual_seed(7)
    keys, values = (torch.randn(1, 2, tokens, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    layer = ChannelCodedLayer(bits, 4, 8)
    layer.target_capacity = capacity
    layer.borrow(keys, values, torch.arange(tokens)[None], [tokens])
    layer.settle()
    return layer, keys, values


@pytest.mark.parametrize("bits", [2, 4])
def test_packed_codes_scales_and_zeros_are_those_of_the_loop(bits):
    layer, keys, values = filled(21, bits)
    per_byte = 8 // bits

    def packed(codes):
        return [sum(c << bits * i for i, c in enumerate(codes[at : at + per_byte])) for at in range(0, 4, per_byte)]

    for head in range(2):
        for group in range(4):
            for channel in range(8):
                codes, scale, zero = naive_group(keys[0, head, 4 * group : 4 * group + 4, channel].tolist(), bits)
                found = [part[0, head, group, channel].tolist() for part in layer.key_parts]
                assert found == [packed(codes), scale, zero]
        for token in range(21 - 8):
            for group in range(2):
                codes, scale, zero = naive_group(values[0, head, token, 4 * group : 4 * group + 4].tolist(), bits)
                found = [part[0, head, token, group].tolist() for part in layer.value_parts]
                assert found == [packed(codes), scale, zero]
    assert layer.key_parts[0].shape == (1, 2, 5, 8, 4 // per_byte)


def test_blocks_of_r_keys_are_coded_at_once_and_with_an_error():
    """Coding keys one by one would make groups of one token: exact, and no saving. Layer 0's keys do not depend on
    what the cache holds, so a full cache tells what they were."""
    model = tiny_llama()
    prompt, generated = random_prompts([13, 40], seed=3)
    sides = [TorchSession(model).open(strategy) for strategy in (KIVI(**SMALL), STRATEGIES.get("full")())]
    for side in sides:
        side.prefill([prompt], reserve_tokens=40)
    flushes = []
    coded = 8
    for token in generated:
        for side in sides:
            side.decode([token])
        coded_layer, exact = (side.cache.layers[0] for side in sides)
        keys, values = coded_layer._decode()
        wrong_keys = ((keys - exact.keys)[:, :, : exact.slots].abs() > 1e-4).any(-1).all(1)[0]
        wrong_values = ((values - exact.values)[:, :, : exact.slots].abs() > 1e-4).any(-1).all(1)[0]
        n = exact.slots
        assert wrong_keys.tolist() == [slot < n - n % 8 for slot in range(n)]
        assert wrong_values.tolist() == [slot < n - 8 for slot in range(n)]
        flushes += [int(wrong_keys.sum()) - coded] if int(wrong_keys.sum()) != coded else []
        coded = int(wrong_keys.sum())
    assert flushes == [8, 8, 8, 8, 8]


def test_bytes_are_those_of_the_parts_and_three_bits_an_element_at_the_defaults():
    layer, _, _ = filled(16)
    used = layer.used_bytes()
    parts = sum(part.nbytes for part in (*layer.key_parts, *layer.value_parts, *layer.residuals))
    unused_values = sum(part[:, :, 8:].nbytes for part in layer.value_parts)
    assert layer.reserved_bytes() == parts
    assert used == parts - unused_values - layer.residuals[0].nbytes, "16 keys are all in codes, 8 values are not"
    spec = TorchSession(tiny_llama(head_dim=128)).spec
    many = 128 * 1000
    per_element = (
        (KIVI().kv_bytes(spec, 2, many) - KIVI().kv_bytes(spec, 2, 128))
        * 8
        / ((many - 128) * 2 * spec.layers * spec.kv_heads * 128)
    )
    assert per_element == pytest.approx(3.0)


def test_constant_channels_and_tokens_are_safe():
    for value in (0.0, 1.0, -3.3, 1e-12, 30000.7):
        layer = ChannelCodedLayer(2, 4, 8)
        given = torch.full((1, 1, 24, 8), value)
        layer.borrow(given, given, torch.arange(24)[None], [24])
        layer.settle()
        for back in layer._decode():
            torch.testing.assert_close(back, given, rtol=1e-3, atol=1e-7)


def test_survivors_of_an_eviction_are_grouped_anew():
    layer, _, _ = filled(24, bits=4)
    new = torch.ones(1, 2, 3, 8, dtype=torch.float64)
    layer.append(new, new, torch.arange(24, 27)[None], [3])
    before = layer.keys.clone()
    slots = torch.arange(0, 27, 2).expand(1, 2, 14)
    layer.keep(slots, torch.full((1, 2), 14))
    layer.settle()
    keys, _ = layer._decode()
    torch.testing.assert_close(keys[:, :, 8:14], before[:, :, slots[0, 0, 8:]])
    errors = (keys[:, :, :8] - before[:, :, slots[0, 0, :8]]).abs()
    assert 0 < errors.max() < 0.3, "coded again, and with the codes of these very tokens"
    assert layer.kept_positions()[0, 0].tolist() == list(range(0, 27, 2))
    with pytest.raises(RuntimeError, match="one by one"):
        layer.drop(torch.zeros(1, 2, dtype=torch.long))


def test_a_residual_that_groups_do_not_fill_is_refused():
    with pytest.raises(ValueError, match="multiple of group_size"):
        KIVI(group_size=32, residual_tokens=48)
