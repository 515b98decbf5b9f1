"""A cache in another memory: the logits of a loop that keeps everything, and the bytes that must be copied for it."""

from __future__ import annotations

import pytest
import torch
from coded_llama import assert_logits_follow
from kvfrontier.cache.kv import KVCache
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import ENGINES, STRATEGIES
from tiny import exact_llama, random_prompts

OFFLOAD, DISK, STACK = (STRATEGIES.get(name) for name in ("offload", "disk", "stack"))
LAYERS, HEADS, HEAD_DIM = 3, 2, 16
TOKEN = 2 * HEAD_DIM * 8  # bytes of a head's key and value in float64
TIERS = {
    "offload": OFFLOAD(),
    "offload, one after the other": OFFLOAD(prefetch="off"),
    "offload, emulated": OFFLOAD(link_gigabytes_per_s=50.0),
    "disk": DISK(),
    "disk, one after the other": DISK(prefetch="off"),
    "disk past the page cache": DISK(io="direct"),
    "disk, emulated": DISK(store_megabytes_per_s=50_000.0),
}
EACH = pytest.mark.parametrize("strategy", TIERS.values(), ids=TIERS)


@EACH
@pytest.mark.parametrize("session", [{}, {"prefill": "chunked", "chunk_tokens": 7}], ids=str)
def test_logits_are_those_of_a_loop_that_keeps_everything(strategy, session):
    def keep(llama, entries, before):
        """Nothing is rounded, nothing lost."""

    assert_logits_follow(strategy, keep, prompt_tokens=23, steps=6, **session)


def copied(sequences, act):
    """What a call fetched and stored."""
    before = sequences.cache.copied_bytes()
    act()
    return tuple(size - before[metric] for metric, size in sequences.cache.copied_bytes().items())


def open_model(strategy):
    return TorchSession(exact_llama(layers=LAYERS)).open(strategy)


@pytest.mark.parametrize("strategy", [OFFLOAD(), OFFLOAD(prefetch="off"), DISK()], ids=str)
def test_a_step_fetches_all_that_is_held_and_stores_what_is_new(strategy):
    sequences, lengths = open_model(strategy), [40, 23, 9]
    prompts, turn = random_prompts(lengths), random_prompts([5, 2, 8], seed=1)
    all_heads = LAYERS * HEADS * TOKEN
    assert copied(sequences, lambda: sequences.prefill(prompts, reserve_tokens=4)) == (0, sum(lengths) * all_heads)
    for step in range(4):
        held = (sum(lengths) + 3 * step) * all_heads
        assert copied(sequences, lambda: sequences.decode([5, 6, 7])) == (held, 3 * all_heads)
    held = (sum(lengths) + 12) * all_heads
    # A reading changes the layers' size, and a file of another size is written anew.
    new = 15 * all_heads if strategy.name == "offload" else held + 15 * all_heads
    assert copied(sequences, lambda: sequences.extend(turn)) == (held, new)


@pytest.mark.parametrize("strategy", [OFFLOAD(), OFFLOAD(prefetch="off")], ids=str)
def test_chunks_of_a_reading_come_and_go_and_each_token_is_stored_once(strategy):
    sequences = TorchSession(exact_llama(layers=LAYERS), prefill="chunked", chunk_tokens=7).open(strategy)
    heads = LAYERS * HEADS * TOKEN
    fetched = (7 + 14 + 21) * heads
    assert copied(sequences, lambda: sequences.prefill(random_prompts([23]))) == (fetched, 23 * heads)
    assert copied(sequences, lambda: sequences.extend(random_prompts([9]))) == ((23 + 30) * heads, 9 * heads)


def test_past_the_page_cache_whole_blocks_are_read_and_written():
    """Row-major images, each tensor from a block on: counted with loops over bytes."""
    sequences, steps = open_model(DISK(io="direct")), 3
    sequences.prefill(random_prompts([70]), reserve_tokens=steps)
    capacity = sequences.cache.layers[0].capacity
    for count in range(70, 70 + steps):
        entry = HEAD_DIM * 8
        held = {(h * capacity + s) * entry // 4096 for h in range(HEADS) for s in range(count)}
        new = {(h * capacity + count) * entry // 4096 for h in range(HEADS)}
        expected = tuple(2 * LAYERS * len(blocks) * 4096 for blocks in (held, new))
        assert copied(sequences, lambda: sequences.decode([5])) == expected


def test_codes_cross_the_link_and_what_eviction_moved_is_stored_again():
    """int8 under h2o: all kept codes come, and one token's go for each head: the new one, or what fills its gap."""
    strategy = STACK(evict="h2o", store="int8", tier="offload", budget=20)
    sequences, code = open_model(strategy), 2 * (HEAD_DIM + 2)
    heads = LAYERS * HEADS * code
    assert copied(sequences, lambda: sequences.prefill(random_prompts([60]))) == (0, 20 * heads)
    for step in range(8):
        fetched, stored = copied(sequences, lambda step=step: sequences.decode([5 + step]))
        assert fetched == 20 * heads == strategy.kv_bytes(sequences.session.spec, 8, 60, step)
        assert stored == heads, "the newest token is recent, so another one always goes"


def test_a_reading_in_chunks_moves_its_codes_alone_and_once():
    options = {"prefill": "chunked", "chunk_tokens": 7}
    strategy = STACK(evict="h2o", store="int8", tier="offload", budget=1.0)
    sequences = TorchSession(exact_llama(layers=LAYERS), **options).open(strategy)
    heads = LAYERS * HEADS * 2 * (HEAD_DIM + 2)
    assert copied(sequences, lambda: sequences.prefill(random_prompts([23]))) == (0, 23 * heads)
    assert copied(sequences, lambda: sequences.extend(random_prompts([9]))) == (23 * heads, 9 * heads)


def test_groups_and_residuals_cross_the_link_as_they_fill():
    """kivi, 4 bits, G 4, R 8: a step stores a key and a value as they are, a value's codes, and full groups."""
    store = "kivi(bits=4, group_size=4, residual_tokens=8)"
    sequences = open_model(STACK(evict="snapkv", store=store, tier="offload", budget=1.0))
    sequences.prefill(random_prompts([16]))
    group, value = HEAD_DIM * (2 + 4), HEAD_DIM // 4 * (2 + 4)
    for tokens in range(17, 34):
        full = tokens % 8 == 0
        of_keys = 2 * group if full else HEAD_DIM * 8
        stored = copied(sequences, lambda: sequences.decode([5]))[1]
        assert stored == LAYERS * HEADS * (of_keys + value + HEAD_DIM * 8)


@EACH
@pytest.mark.parametrize("chunk", [None, 7])
def test_at_most_two_layers_are_on_the_device_at_once_and_between_calls_none(strategy, chunk, monkeypatch):
    options = {"prefill": "chunked", "chunk_tokens": chunk} if chunk else {}
    sequences = TorchSession(exact_llama(layers=LAYERS), **options).open(strategy)
    layers, seen, attend = sequences.cache.layers, [], KVCache.attend

    def there(layer):
        return bool(layer.inner.held()) or layer._coming is not None

    def noting(cache, layer_idx, *tensors):
        out = attend(cache, layer_idx, *tensors)
        seen.append([index for index, layer in enumerate(layers) if there(layer)])
        return out

    monkeypatch.setattr(KVCache, "attend", noting)
    sequences.prefill(random_prompts([20]))
    sequences.decode([4])
    sequences.extend(random_prompts([12]))
    coming = [[1], [2], []] if strategy.prefetch == "layer" else [[], [], []]
    later_calls = 2 + 1 + 2 if chunk else 1 + 1
    assert seen == [*[[]] * 3, *coming * later_calls], "when a layer is done only the next one is there, or comes"
    assert sequences.bytes_by_metric()["kv_device_bytes"] == 0


def test_a_generation_reports_the_copies_of_its_prefill_and_the_mean_of_its_steps():
    generation = TorchSession(exact_llama(layers=LAYERS)).generate(OFFLOAD(), random_prompts([30, 30]), 5)
    found = {(metric, phase): value for metric, phase, value in generation.memory}
    heads = 2 * LAYERS * HEADS * TOKEN
    assert found["fetched_bytes", "prefill"] == 0 and found["stored_bytes", "prefill"] == 30 * heads
    assert found["fetched_bytes", "decode"] == (30 + 31 + 32 + 33) / 4 * heads
    assert found["stored_bytes", "decode"] == heads
    assert found["kv_host_bytes", "decode"] == 34 * heads == found["kv_formula_bytes", "decode"]
    full = TorchSession(exact_llama(layers=LAYERS)).generate(STRATEGIES.get("full")(), random_prompts([30, 30]), 5)
    assert full.tokens == generation.tokens
    assert not {"fetched_bytes", "kv_disk_bytes"} & {metric for metric, _, _ in full.memory}


def test_a_fork_has_a_tier_of_its_own_and_its_layers_one_link():
    sequences = open_model(DISK())
    sequences.prefill(random_prompts([30]))
    fork = sequences.fork()
    files = [layer.shelf.file.fd for cache in (sequences.cache, fork.cache) for layer in cache.layers]
    assert len(set(files)) == 2 * LAYERS
    assert len({id(layer.link) for layer in fork.cache.layers}) == 1
    assert torch.equal(fork.decode([5]), sequences.decode([5]))


def test_rows_say_what_the_two_memories_are():
    assert OFFLOAD().memories("cpu") == {"kv_tier": "host memory: the same RAM as the device's", "kv_link": "real"}
    assert OFFLOAD(link_gigabytes_per_s=25).memories("cuda") == {
        "kv_tier": "pinned host memory",
        "kv_link": "emulated, 25 GB/s",
    }
    facts = DISK(io="direct", store_megabytes_per_s=500).memories("cpu")
    assert facts["kv_tier"].startswith("files on ") and facts["kv_tier"].endswith(", direct")
    assert facts["kv_link"] == "emulated, 500 MB/s"
    assert STACK(tier="offload").memories("cuda") == OFFLOAD().memories("cuda")
    assert STACK().memories("cpu") == STRATEGIES.get("full")().memories("cpu") == {}


@pytest.mark.parametrize("strategy", [OFFLOAD(), DISK(), STACK(tier="disk")], ids=str)
def test_the_simulator_has_no_formula_for_copies(strategy):
    with pytest.raises(Unsupported, match="copies between memories"):
        ENGINES.get("simulator")().check(strategy, ModelSpec("any"))
    ENGINES.get("torch")().check(strategy, ModelSpec("any"))
