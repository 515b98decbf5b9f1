"""A tiny Llama whose weights are drawn by NumPy: the same numbers under any version of torch and transformers."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

LAYERS, TOKENS, VOCAB = 4, 64, 97


def same_llama(attention: str = "sdpa") -> PreTrainedModel:
    """4 layers, 4 query heads on 2 KV heads, float32, peaked attention."""
    config = LlamaConfig(
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=16, hidden_size=48,
        intermediate_size=96, vocab_size=VOCAB, max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()
    draw = np.random.RandomState(7)  # the legacy generator: its stream is frozen
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "norm" in name:
                weight.fill_(1.0)
            else:
                weight.copy_(torch.from_numpy(0.3 * draw.randn(*weight.shape)).float())
    return model


def same_prompt() -> list[int]:
    """64 token ids."""
    return np.random.RandomState(8).randint(3, VOCAB, TOKENS).tolist()
