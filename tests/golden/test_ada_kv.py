"""Ada-KV against a naive float64 loop; its totals are those of SnapKV, and its memory is really saved."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies._apportion import apportion, spread
from kvfrontier.strategies.base import Strategy
from reference import NaiveLlama, best, window_scores
from tiny import exact_llama, random_prompts, tiny_llama

PROMPT, STEPS = 61, 5


def naive_counts(scores, chosen, floor):
    """How many older tokens each head keeps, from all heads' scores."""
    everyone = sorted((-score, head) for head, row in enumerate(scores) for score in row)
    deserved = [[head for _, head in everyone[: chosen * len(scores)]].count(head) for head in range(len(scores))]
    shares = [(1 - Fraction(floor)) * own + Fraction(floor) * chosen for own in deserved]
    counts = [int(share) for share in shares]
    while sum(counts) < chosen * len(scores):
        short = [share - count for share, count in zip(shares, counts, strict=True)]
        counts[short.index(max(short))] += 1
    return counts


def naive_ada_kv(llama, k, window, floor, uniform_layers):
    group = llama.config.num_attention_heads // llama.config.num_key_value_heads
    for layer, heads in enumerate(llama.cache):
        scores = [window_scores(entries[:-window], group, window) for entries in heads]
        counts = [k - window] * len(heads) if layer < uniform_layers else naive_counts(scores, k - window, floor)
        for entries, row, count in zip(heads, scores, counts, strict=True):
            entries[:] = [entries[i] for i in best(row, count)] + entries[-window:]


@pytest.mark.parametrize(
    ("floor", "uniform_layers", "kv_heads"), [(0.2, 0, 2), (0.0, 0, 4), (0.55, 1, 4), (1.0, 0, 2), (0.2, 0, 1)]
)
def test_ada_kv_keeps_what_the_naive_loop_keeps(floor, uniform_layers, kv_heads):
    model = tiny_llama(kv_heads=kv_heads, seed=3)
    prompt, generated = random_prompts([PROMPT, STEPS], seed=4)
    strategy = STRATEGIES.get("ada_kv")(budget=20, window_tokens=5, floor=floor, uniform_layers=uniform_layers)
    sequences, llama = TorchSession(model).open(strategy), NaiveLlama(model)
    found = sequences.prefill([prompt], reserve_tokens=STEPS)
    for token in prompt:
        logits = llama.step(token)
    naive_ada_kv(llama, 20, 5, floor, uniform_layers)
    for token in [*generated, None]:
        kept = [[[p for p in head if p >= 0] for head in layer[0].tolist()] for layer in sequences.kept_positions()]
        assert kept == llama.positions()
        torch.testing.assert_close(found[0].double(), logits, atol=2e-4, rtol=1e-4)
        if token is not None:
            found, logits = sequences.decode([token]), llama.step(token)


def counts_of(sequences):
    return [(positions >= 0).sum(-1) for positions in sequences.kept_positions()]


def test_heads_differ_but_a_layers_total_and_its_bytes_are_those_of_snapkv():
    model, prompts = tiny_llama(kv_heads=4, seed=3), random_prompts([61, 40, 9], seed=4)
    held = {}
    for name in ("snapkv", "ada_kv"):
        sequences = TorchSession(model).open(STRATEGIES.get(name)(budget=0.4, window_tokens=5))
        sequences.prefill(prompts)
        held[name] = counts_of(sequences), sequences.bytes_by_metric()
    assert any((counts != counts[:, :1]).any() for counts in held["ada_kv"][0])
    for ours, uniform in zip(held["ada_kv"][0], held["snapkv"][0], strict=True):
        assert torch.equal(ours.sum(1), uniform.sum(1))
    assert held["ada_kv"][1]["kv_device_bytes"] == held["snapkv"][1]["kv_device_bytes"]


def tensor_bytes(layers):
    """What the layers hold in tensors of keys and values, each `[..., head_dim]`, as the allocator has it."""
    held = [vars(layer).values() for layer in layers]
    tensors = [part for values in held for value in values for part in (value if isinstance(value, list) else [value])]
    memories = [
        part.untyped_storage() for part in tensors if isinstance(part, torch.Tensor) and part.is_floating_point()
    ]
    return sum({memory.data_ptr(): memory.nbytes() for memory in memories}.values())


@pytest.mark.parametrize(("lengths", "budget"), [([61], 20), ([61, 61], 0.3), ([61, 40, 9], 0.3)], ids=str)
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_what_is_reserved_is_what_is_held_and_room_for_the_steps_to_come(kv_heads, lengths, budget):
    model, slot = tiny_llama(kv_heads=kv_heads, seed=3), 2 * 16 * 4
    reserved = {}
    for name, options in {"snapkv": {}, "ada_kv": {"floor": 0.0}}.items():
        sequences = TorchSession(model).open(STRATEGIES.get(name)(budget=budget, window_tokens=5, **options))
        sequences.prefill(random_prompts(lengths, seed=4), reserve_tokens=STEPS)
        for step in range(STEPS + 1):
            sizes, layers = sequences.bytes_by_metric(), sequences.cache.layers
            reserved.setdefault(name, sizes["kv_reserved_bytes"])
            assert tensor_bytes(layers) == sizes["kv_reserved_bytes"] == reserved[name]
            if name == "ada_kv":
                assert any((layer.counts != layer.counts[:, :1]).any() for layer in layers)
                room = (STEPS - step) * 2 * len(lengths) * kv_heads * slot
                assert sizes["kv_reserved_bytes"] == sizes["kv_device_bytes"] + room
            if step < STEPS:
                sequences.decode([7] * len(lengths))
    assert (
        reserved["ada_kv"] == reserved["snapkv"] if len(set(lengths)) == 1 else reserved["ada_kv"] < reserved["snapkv"]
    )


@pytest.mark.parametrize("options", [{}, {"prefill": "chunked", "chunk_tokens": 16}], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_packed_heads_answer_as_padded_ones(monkeypatch, kv_heads, options):
    """Through steps beyond the reserved ones, further turns (of one token too) and forks; padded: the plain layer."""
    strategy = STRATEGIES.get("ada_kv")(budget=0.3, window_tokens=5, floor=0.0)
    session = TorchSession(exact_llama(kv_heads=kv_heads, seed=3), **options)
    packed = session.open(strategy)
    monkeypatch.setattr(type(strategy), "storage", Strategy.storage)
    padded = session.open(strategy)
    assert [type(layer) for layer in padded.cache.layers] != [type(layer) for layer in packed.cache.layers]
    results = [[each.prefill(random_prompts([61, 40, 9], seed=4), reserve_tokens=2) for each in (packed, padded)]]
    for turn, lengths in enumerate([[5, 9, 2], [1, 1, 1], [40, 1, 3]]):
        for token in range(4):
            results.append([each.decode([token + 5] * 3) for each in (packed, padded)])
        left = packed
        packed, padded = packed.fork(), padded.fork()
        left.decode([9, 9, 9])
        results.append([each.extend(random_prompts(lengths, seed=turn)) for each in (packed, padded)])
        assert all(map(torch.equal, packed.kept_positions(), padded.kept_positions()))
        assert packed.bytes_by_metric()["kv_reserved_bytes"] < padded.bytes_by_metric()["kv_reserved_bytes"]
        assert packed.bytes_by_metric()["kv_device_bytes"] == padded.bytes_by_metric()["kv_device_bytes"]
    for ours, theirs in results:
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("parts", [{"store": "int8"}, {"store": None, "tier": "offload"}], ids=str)
def test_in_a_stack_heads_share_an_allocation_and_the_bytes_say_so(parts):
    strategy = STRATEGIES.get("stack")(evict="ada_kv(window_tokens=5, floor=0.0)", budget=20, **parts)
    sequences = TorchSession(tiny_llama(kv_heads=4, seed=3)).open(strategy)
    sequences.prefill(random_prompts([61], seed=4), reserve_tokens=3)
    sizes, counts = sequences.bytes_by_metric(), counts_of(sequences)
    slot = (sizes["kv_device_bytes"] + sizes["kv_host_bytes"]) / sum(int(count.sum()) for count in counts)
    assert sizes["kv_reserved_bytes"] == sum((int(count.max()) + 3) * 4 for count in counts) * slot


def test_a_later_turn_keeps_the_total_although_heads_hold_different_numbers():
    strategy = STRATEGIES.get("ada_kv")(budget=24, window_tokens=6, floor=0.0)
    sequences = TorchSession(tiny_llama(kv_heads=4, seed=3)).open(strategy)
    sequences.prefill(random_prompts([61], seed=4))
    for turn in range(3):
        sequences.decode([7])
        sequences.extend(random_prompts([2 + 4 * turn], seed=turn))
        for counts in counts_of(sequences):
            assert counts.sum() == 4 * 24
        seen = sequences.seen_tokens[0]
        assert all((layer[0] == p).any(-1).all() for layer in sequences.kept_positions() for p in range(seen - 6, seen))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.floats(0, 1), st.data())
def test_shares_are_exact_and_within_what_there_is(available, floor, data):
    total = data.draw(st.integers(0, sum(available)))
    even = spread(available, total)
    assert sum(even) == total and all(0 <= given <= most for given, most in zip(even, available, strict=True))
    poorer = [given for given, most in zip(even, available, strict=True) if given < most]
    assert not poorer or max(even) - min(poorer) <= 1
    order = data.draw(st.permutations([head for head, most in enumerate(available) for _ in range(most)]))
    own = [order[:total].count(head) for head in range(len(available))]
    shares = [(1 - floor) * mine + floor * uniform for mine, uniform in zip(own, even, strict=True)]
    whole = apportion(shares, total)
    assert sum(whole) == total
    assert all(int(s - 1e-6) <= count <= most for s, count, most in zip(shares, whole, available, strict=True))
