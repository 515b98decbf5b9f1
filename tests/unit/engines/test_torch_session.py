"""The engine's own loop against transformers' forward and generate; model families; what it refuses."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache.layer import LayerCache
from kvfrontier.engines import ENGINES
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import DeviceMismatch, Unsupported
from kvfrontier.plan.device import Device
from kvfrontier.registry import STRATEGIES
from tiny import random_prompts, tiny_llama
from transformers import AutoConfig, AutoModelForCausalLM

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "olmo2", "granite", "cohere", "gpt_neox")


def tiny(family, **changes):
    torch.manual_seed(0)
    options = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
        "intermediate_size": 96, "vocab_size": 97, "max_position_embeddings": 512, "initializer_range": 0.3,
        "sliding_window": None, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(options | changes))).eval()


def open_full(model, **options):
    return TorchSession(model, **options).open(STRATEGIES.get("full")())


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_cache_equals_the_models_own_forward(family):
    model = tiny(family)
    prompt, turn = random_prompts([33, 8])
    expected = model(torch.tensor([prompt + turn])).logits[0]
    sequences = open_full(model)
    torch.testing.assert_close(sequences.prefill([prompt])[0], expected[32], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(sequences.decode(turn[:1])[0], expected[33], atol=2e-4, rtol=1e-4)
    extended = sequences.extend([turn[1:]], all_logits=True)[0]
    torch.testing.assert_close(extended, expected[34:], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
@pytest.mark.parametrize("prefill", ["sdpa", "eager", "chunked"])
def test_generation_equals_the_models_own(kv_heads, prefill):
    model = tiny_llama(kv_heads=kv_heads)
    prompts = random_prompts([50, 50])
    ids = torch.tensor(prompts)
    model.generation_config.eos_token_id = None
    own = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, pad_token_id=0)
    session = TorchSession(model, prefill=prefill, chunk_tokens=13)
    assert session.generate(STRATEGIES.get("full")(), prompts, 16).tokens == own[:, 50:].tolist()


def test_the_model_gets_its_own_attention_back():
    model = tiny_llama()
    ids = torch.tensor(random_prompts([9]))
    expected = model(ids).logits
    session = TorchSession(model)
    with pytest.raises(RuntimeError, match="close the session"):
        model(ids)
    session.close()
    session.close()
    torch.testing.assert_close(model(ids).logits, expected, atol=0, rtol=0)


def test_extending_in_chunks_equals_extending_at_once():
    prompts, turns = random_prompts([30, 21]), random_prompts([25, 11], seed=4)
    logits = []
    for options in ({}, {"prefill": "chunked", "chunk_tokens": 4}):
        sequences = TorchSession(tiny_llama(), **options).open(STRATEGIES.get("h2o")(budget=0.5))
        sequences.prefill(prompts)
        logits.append(sequences.extend(turns, all_logits=True))
    for whole, parts in zip(*logits, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)


def test_a_chunked_prefill_gives_memory_back_when_the_strategy_evicts():
    sequences = TorchSession(tiny_llama(), prefill="chunked", chunk_tokens=32).open(STRATEGIES.get("h2o")(budget=0.1))
    sequences.prefill(random_prompts([400]), reserve_tokens=10)
    assert [layer.capacity for layer in sequences.cache.layers] == [41, 41]


def test_a_monolithic_prefill_allocates_only_what_is_kept(monkeypatch):
    capacities = []
    allocate = LayerCache._allocate

    def spy(self, keys, values, capacity):
        capacities.append(capacity)
        allocate(self, keys, values, capacity)

    monkeypatch.setattr(LayerCache, "_allocate", spy)
    sequences = TorchSession(tiny_llama()).open(STRATEGIES.get("h2o")(budget=0.1))
    sequences.prefill(random_prompts([400]), reserve_tokens=10)
    for token in range(10):
        sequences.decode([token + 3])
    assert capacities == [41, 41], "one allocation a layer: 40 kept tokens and the step's own"


def test_logits_can_be_changed_in_place_by_who_asked_for_them():
    sequences = open_full(tiny_llama())
    sequences.prefill(random_prompts([9]))[0, 0] = 1.0


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda s: s.extend([[3]]), "an empty one is prefilled"),
        (lambda s: (s.prefill([[3, 4]]), s.prefill([[3, 4]])), "is extended"),
        (lambda s: s.prefill([[3], []]), "non-empty rows"),
        (lambda s: (s.prefill([[3], [4]]), s.extend([[3]])), "expected 2"),
    ],
)
def test_calls_out_of_order_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act(open_full(tiny_llama()))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("mistral", {"sliding_window": 2}, "windows of 2 tokens"),
        ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ("gemma3_text", {"head_dim": 16, "sliding_window": 64, "use_bidirectional_attention": True}, "both directions"),
        ("gemma2", {"head_dim": 16, "layer_types": ["full_attention"] * 2}, "caps its attention logits"),
    ],
)
def test_models_the_cache_cannot_hold_are_refused(family, changes, message):
    with pytest.raises(Unsupported, match=message):
        TorchSession(tiny(family, **changes))


def test_a_window_that_the_config_does_not_say_is_no_silent_mistake():
    model = tiny("mistral", sliding_window=64)
    session = TorchSession(model)
    model.config.sliding_window = 32
    with pytest.raises(Unsupported, match="window in layer 0"):
        session.open(STRATEGIES.get("full")()).prefill(random_prompts([40]))


@pytest.mark.parametrize("device", [Device("gpu", "cuda"), Device("cpu", "cpu", match="no such processor")])
def test_another_device_than_the_declared_one_is_an_error(device):
    if device.kind == "cuda" and torch.cuda.is_available():
        device = Device("gpu", "cuda", match="no such device")
    with pytest.raises(DeviceMismatch, match=device.name):
        ENGINES.get("torch")().load(None, device)


def test_phases_report_their_peak_memory():
    generation = TorchSession(tiny_llama()).generate(STRATEGIES.get("full")(), random_prompts([40]), 3)
    peaks = {phase: size for metric, phase, size in generation.memory if metric == "process_peak_bytes"}
    assert set(peaks) == {"prefill", "decode"}
    assert all(size > 1e7 for size in peaks.values())
