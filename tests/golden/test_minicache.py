"""MiniCache against loops over tokens: directions, kept lengths, the tokens apart, and the logits after them."""

from __future__ import annotations

import math

import pytest
import torch
from coded_llama import CodedLlama
from kvfrontier.cache.merged import merge_directions
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES
from tiny import exact_llama, random_prompts

MINI, STACK = STRATEGIES.get("minicache"), STRATEGIES.get("stack")
LAYERS = 5  # layers 2 and 3 are a pair, 4 is alone


def split(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return length, [x / length for x in vector]


def naive_merge(pairs, t, gamma):
    """What is read back of (shallow, deep) vectors, one pair a token; and which tokens stay apart."""
    angles = []
    for shallow, deep in pairs:
        (_, a), (_, b) = split(shallow), split(deep)
        angles.append(math.acos(max(-1.0, min(1.0, sum(x * y for x, y in zip(a, b, strict=True))))))
    apart = sorted(range(len(pairs)), key=lambda i: -angles[i])[: math.ceil(gamma * len(pairs))]
    read = []
    for i, (shallow, deep) in enumerate(pairs):
        (length_a, a), (length_b, b), angle = split(shallow), split(deep), angles[i]
        near, far = math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)
        direction = [near * x + far * y for x, y in zip(a, b, strict=True)]
        merged = ([length_a * x for x in direction], [length_b * x for x in direction])
        read.append((shallow, deep) if i in apart else merged)
    return read, sorted(apart)


def merge_layers(llama, shallow, deep, since, t, gamma):
    """Merge the entries from `since` on of two layers; the slots that stay apart, by head, of keys and values."""
    stay = []
    for head in range(len(llama.cache[shallow])):
        entries = [llama.cache[layer][head][since:] for layer in (shallow, deep)]
        keys, kept = naive_merge(list(zip(*map(llama.rotated_keys, entries), strict=True)), t, gamma)
        values = [[entry.value.tolist() for entry in layer] for layer in entries]
        values, kept_values = naive_merge(list(zip(*values, strict=True)), t, gamma)
        for which, layer in enumerate(entries):
            llama.put_back(layer, [pair[which] for pair in keys], [pair[which] for pair in values])
        stay.append(([since + i for i in kept], [since + i for i in kept_values]))
    return stay


@pytest.mark.parametrize("session", [{}, {"prefill": "chunked", "chunk_tokens": 9}, {"prefill": "eager"}], ids=str)
@pytest.mark.parametrize("params", [{}, {"t": 0.3, "gamma": 0.0}, {"gamma": 0.4}], ids=str)
def test_logits_and_tokens_apart_are_those_of_the_loop(params, session):
    model, strategy = exact_llama(layers=LAYERS), MINI(**params)
    prompt, steps, turn, more = random_prompts([41, 5, 7, 4], seed=5)
    sequences, llama, merged = TorchSession(model, **session).open(strategy), CodedLlama(model), 0
    for tokens in ([*prompt], *([t] for t in steps), [*turn], *([t] for t in more)):
        if llama.position == 0:
            found = sequences.prefill([tokens], reserve_tokens=5)
        else:
            found = sequences.decode(tokens) if len(tokens) == 1 else sequences.extend([tokens])
        for token in tokens:
            expected = llama.step(token)
        torch.testing.assert_close(found[0], expected, atol=1e-8, rtol=1e-8)
        if len(tokens) > 1:
            stay = merge_layers(llama, 2, 3, merged, strategy.t, strategy.gamma)
            merged = llama.position
            keys, values = sequences.cache.layers[3].merged[-1]
            for head, (of_keys, of_values) in enumerate(stay):
                assert keys.apart_slots[0, head].tolist() == of_keys
                assert values.apart_slots[0, head].tolist() == of_values
    assert len(sequences.cache.layers[2].merged) == 2


def test_bytes_are_a_direction_and_two_lengths_for_merged_tokens():
    strategy = MINI(gamma=0.1)
    sequences = TorchSession(exact_llama(layers=LAYERS)).open(strategy)
    sequences.prefill(random_prompts([40]), reserve_tokens=3)
    for token in range(3):
        sequences.decode([token])
    spec, heads, width, element = sequences.session.spec, 2, 16, 8
    pair = 36 * (width + 2) + 4 * 2 * width + 3 * 2 * width
    expected = 2 * heads * element * (pair + 3 * 43 * width)
    assert sequences.bytes_by_metric()["kv_device_bytes"] == expected == strategy.kv_bytes(spec, element, 40, 3)


@pytest.mark.parametrize(
    ("layers", "first", "pairs"),
    [(2, 0.5, []), (4, 0.5, [2]), (5, 0.5, [2]), (30, 0.5, [*range(15, 29, 2)]), (4, 0.0, [0, 2])],
)
def test_pairs_begin_in_the_middle(layers, first, pairs):
    strategy = MINI(start_depth=first)
    assert list(strategy.pairs(layers)) == pairs
    if pairs:
        strategy.check(ModelSpec("model", layers=layers))
    else:
        with pytest.raises(Unsupported, match="2 layers have no pair"):
            strategy.check(ModelSpec("model", layers=layers))


def test_gamma_one_is_the_full_cache():
    sequences = [TorchSession(exact_llama(layers=LAYERS)).open(s) for s in (MINI(gamma=1.0), STRATEGIES.get("full")())]
    prompts, turn = random_prompts([30, 12]), random_prompts([4, 6], seed=3)
    for act in (
        lambda s: s.prefill(prompts),
        lambda s: s.decode([5, 6]),
        lambda s: s.extend(turn),
        lambda s: s.decode([7, 8]),
    ):
        assert torch.equal(*map(act, sequences))
    assert sequences[0].bytes_by_metric()["kv_device_bytes"] == sequences[1].bytes_by_metric()["kv_device_bytes"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equal_directions_merge_without_loss_and_odd_ones_stay_finite(dtype):
    vectors = torch.randn(50, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    merged, angle = merge_directions(vectors, vectors * 3.5, 0.6)
    torch.testing.assert_close(merged, unit)
    assert (angle < 1e-6).all()
    merged, angle = merge_directions(vectors, -vectors, 0.6)
    torch.testing.assert_close(merged, -unit)
    torch.testing.assert_close(angle, torch.full_like(angle, math.pi))
    zero = torch.zeros_like(vectors)
    assert all(part.isfinite().all() for other in (zero, vectors) for part in merge_directions(zero, other, 0.5))
    assert merge_directions(vectors, -vectors, 0.5)[0].isfinite().all()


def test_no_stack_evicts_from_it():
    with pytest.raises(ValueError, match="'minicache' has none"):
        STACK(store="minicache")
