"""Queries ahead: a later layer's, from an earlier layer's input; which models tell; nothing stays on the model."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache.kv import KVCache
from kvfrontier.engines._queries_ahead import QueriesAhead
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies.infinigen import Infinigen
from tiny import random_prompts, tiny_llama
from transformers import AutoConfig, AutoModelForCausalLM


def tiny(family):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=64,
        intermediate_size=96, vocab_size=97, max_position_embeddings=512, initializer_range=0.3, sliding_window=None,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def hooks(model):
    return sum(len(module._forward_pre_hooks) for module in model.modules())


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "olmo2", "granite", "cohere"])
def test_a_layers_own_queries_come_out_of_its_own_input(family, monkeypatch):
    model, found, attend = tiny(family), [], KVCache.attend

    def note(cache, layer_idx, queries, *rest):
        if cache.call.phase == "decode":
            found.append((queries, cache._queries_ahead(layer_idx, 0)))
        return attend(cache, layer_idx, queries, *rest)

    monkeypatch.setattr(KVCache, "attend", note)
    sequences = TorchSession(model).open(Infinigen())
    sequences.prefill(random_prompts([30, 21]))
    assert sequences.decode([5, 6]).isfinite().all()
    assert len(found) == 3
    for queries, ahead in found:
        torch.testing.assert_close(ahead, queries)
    assert hooks(model) == 0


@torch.no_grad()
def test_a_later_layers_queries_are_its_projection_of_the_earlier_input():
    model = tiny_llama(layers=3)
    ahead, inputs = QueriesAhead(model_of(model), 3), {}
    first, later = (model.model.layers[i].self_attn for i in (0, 2))
    first.register_forward_pre_hook(lambda _, args, kwargs: inputs.update(kwargs), with_kwargs=True)
    sequences = TorchSession(model).open(STRATEGIES.get("full")())
    sequences.prefill([[3, 4, 5]])
    with ahead:
        first.register_forward_hook(lambda *_: inputs.update(found=ahead(0, 2)))
        sequences.decode([6])
        queries = later.q_proj(inputs["hidden_states"]).view(1, 1, 4, 16).transpose(1, 2)
        cos, sin = (part[:, None] for part in inputs["position_embeddings"])
        turned = torch.cat((-queries[..., 8:], queries[..., :8]), -1)
        torch.testing.assert_close(inputs["found"], queries * cos + turned * sin)


def model_of(model):
    TorchSession(model)  # gives the model the attention function that takes a cache
    return model


@pytest.mark.parametrize(
    ("family", "reason"), [("phi3", "Phi3ForCausalLM has other"), ("gpt_neox", "GPTNeoXForCausalLM has other")]
)
def test_models_without_a_query_projection_are_unsupported(family, reason):
    model = tiny(family)
    with pytest.raises(Unsupported, match=f"need a q_proj in each layer; {reason} projections"):
        TorchSession(model).open(Infinigen())
    assert hooks(model) == 0
    TorchSession(model).open(STRATEGIES.get("h2o")())


def test_queries_that_the_model_makes_in_another_way_are_unsupported():
    model = tiny_llama(layers=3)
    model.model.layers[1].self_attn.q_norm = torch.nn.RMSNorm(16)  # of which the model itself knows nothing
    with pytest.raises(Unsupported, match=r"cannot be computed outside LlamaForCausalLM's attention \(layer 1"):
        TorchSession(model).open(Infinigen())
    assert hooks(model) == 0
