"""Tiny random models of other kinds than Llama's, from transformers' own config classes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

WINDOW = 16
_BASE = {
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 48,
    "intermediate_size": 64, "vocab_size": 97, "max_position_embeddings": 512, "initializer_range": 0.3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 14, "first_k_dense_replace": 2, "moe_intermediate_size": 32, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "head_dim": None,
}  # fmt: skip
_ALTERNATING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 4,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama MHA": ("llama", {"num_key_value_heads": 4}),
    "llama MQA": ("llama", {"num_key_value_heads": 1}),
    "no head_dim": ("gpt_neox", {"head_dim": None, "num_key_value_heads": None, "hidden_size": 64}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "gemma3": ("gemma3_text", _ALTERNATING | {"query_pre_attn_scalar": 16}),
    "gpt_oss": ("gpt_oss", _ALTERNATING | {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1}),
    "deepseek_v2": ("deepseek_v2", _LATENT),
    "deepseek_v3": ("deepseek_v3", _LATENT),
}
"""By name: the family and what differs. GQA with a head_dim other than hidden / heads is what `tiny.py` has."""


def tiny_kind(kind: str, **changes: Any) -> PreTrainedModel:
    """A model in float64, as far as transformers computes in it."""
    family, own = KINDS[kind]
    options = {key: value for key, value in (_BASE | own | changes).items() if value is not None}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **options)
    # Grouped products of experts know no float64.
    return AutoModelForCausalLM.from_config(config, experts_implementation="eager").double().eval()
