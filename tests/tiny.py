"""Tiny random decoder models, built in memory: no hub, no files, milliseconds a forward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel


def tiny_llama(
    layers: int = 2,
    q_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    hidden: int = 48,
    vocab: int = 97,
    max_positions: int = 2048,
    seed: int = 0,
) -> PreTrainedModel:
    """A float32 Llama whose head_dim differs from hidden / q_heads. kv_heads = q_heads is MHA, 1 is MQA."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        num_hidden_layers=layers,
        num_attention_heads=q_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        vocab_size=vocab,
        max_position_embeddings=max_positions,
        initializer_range=0.3,  # large enough that attention is peaked and mistakes show
        tie_word_embeddings=False,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def exact_llama(**shape: int) -> PreTrainedModel:
    """`tiny_llama` in float64 throughout, so that what is discrete (a code, a rank) never hangs on a last bit.

    transformers' norms and rotary embeddings compute in float32 whatever the model's type: they are replaced.
    """
    model = tiny_llama(**shape).double()
    eps = model.config.rms_norm_eps
    for parent in (model.model, *model.model.layers):
        for name in ("norm", "input_layernorm", "post_attention_layernorm"):
            if hasattr(parent, name):
                norm = nn.RMSNorm(model.config.hidden_size, eps, dtype=torch.float64)
                norm.load_state_dict(getattr(parent, name).state_dict())
                setattr(parent, name, norm)
    model.model.rotary_emb = _ExactRotary(model.config.head_dim, model.config.rope_parameters["rope_theta"])
    return model.eval()


class _ExactRotary(nn.Module):
    def __init__(self, head_dim: int, theta: float):
        super().__init__()
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
        self.register_buffer("inv_freq", theta ** (-pairs / head_dim), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = position_ids[..., None].double() * self.inv_freq
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()


def random_prompts(lengths: list[int], vocab: int = 97, seed: int = 0, distinct: bool = False) -> list[list[int]]:
    """Prompts of the given lengths, token ids in [3, vocab).

    distinct: no token comes twice (sum(lengths) <= vocab - 3), for scores that would tie on equal tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    if distinct:
        tokens = (3 + torch.randperm(vocab - 3, generator=generator)[: sum(lengths)]).split(lengths)
        return [part.tolist() for part in tokens]
    return [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in lengths]
