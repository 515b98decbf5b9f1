"""Independent, naive references: a float64 Llama with one Python list a KV head, and a masked full forward.

They share no code with the package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel


@dataclass
class Entry:
    """One cached token of one KV head; the key is stored unrotated.

    rows: (query head of the group, position of the row, weight it gave this token), one for each row and head.
    """

    position: int
    key: Tensor
    value: Tensor
    score: float = 0.0
    rows: list[tuple[int, int, float]] = field(default_factory=list)


def rotate(vectors: Tensor, positions: list[int], theta: float) -> Tensor:
    """RoPE of `[n, head_dim]` vectors, each at its own position; pairs are (i, i + d/2)."""
    half = vectors.shape[1] // 2
    frequency = torch.tensor([theta ** (-2 * i / (2 * half)) for i in range(half)], dtype=torch.float64)
    angle = torch.tensor(positions, dtype=torch.float64)[:, None] * frequency
    a, b = vectors[:, :half], vectors[:, half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), 1)


class NaiveLlama:
    """One token at a time over `cache[layer][kv_head]`, a list of entries that a test may delete from."""

    def __init__(self, model: PreTrainedModel, rolled: bool = False):
        self.config = model.config
        self.theta = model.config.rope_parameters["rope_theta"]
        self.weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
        self.cache = [[[] for _ in range(self.config.num_key_value_heads)] for _ in model.model.layers]
        self.rolled = rolled
        self.position = 0

    def step(self, token: int) -> Tensor:
        """Logits after `token`; every entry's score grows by the weights it gets."""
        w, config = self.weights, self.config
        hidden = w["model.embed_tokens.weight"][token]
        for layer, heads in enumerate(self.cache):
            name = f"model.layers.{layer}."
            x = self._norm(hidden, w[name + "input_layernorm.weight"])
            q, k, v = (w[name + f"self_attn.{p}_proj.weight"] @ x for p in "qkv")
            q, k, v = (t.view(-1, config.head_dim) for t in (q, k, v))
            group = len(q) // len(k)
            for head, entries in enumerate(heads):
                entries.append(Entry(self.position, k[head], v[head]))
            mixed = [self._attend(q[h], heads[h // group], h % group) for h in range(len(q))]
            hidden = hidden + w[name + "self_attn.o_proj.weight"] @ torch.cat(mixed)
            x = self._norm(hidden, w[name + "post_attention_layernorm.weight"])
            gate, up = w[name + "mlp.gate_proj.weight"] @ x, w[name + "mlp.up_proj.weight"] @ x
            hidden = hidden + w[name + "mlp.down_proj.weight"] @ (torch.nn.functional.silu(gate) * up)
        self.position += 1
        return w["lm_head.weight"] @ self._norm(hidden, w["model.norm.weight"])

    def _attend(self, query: Tensor, entries: list[Entry], head: int) -> Tensor:
        place = [index if self.rolled else entry.position for index, entry in enumerate(entries)]
        query = rotate(query[None], place[-1:], self.theta)[0]
        keys = rotate(torch.stack([entry.key for entry in entries]), place, self.theta)
        weights = (keys @ query / math.sqrt(len(query))).softmax(0)
        for entry, weight in zip(entries, weights.tolist(), strict=True):
            entry.score += weight
            entry.rows.append((head, self.position, weight))
        return weights @ torch.stack([entry.value for entry in entries])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + self.config.rms_norm_eps).sqrt() * weight

    def positions(self) -> list[list[list[int]]]:
        """Kept positions `[layer][kv_head]`, ascending."""
        return [[[entry.position for entry in entries] for entries in heads] for heads in self.cache]


def _masked_attention(module, query, key, value, attention_mask, scaling=None, masks=None, **kwargs):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) * scaling
    visible = masks[module.layer_idx].repeat_interleave(group, 1)
    out = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ value
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("masked_reference", _masked_attention)


@torch.no_grad()
def masked_forward(model: PreTrainedModel, tokens: list[int], masks: list[Tensor]) -> Tensor:
    """Logits `[tokens, vocab]` of one full forward at original positions.

    masks: per layer, which keys each query sees `[1, kv_heads, tokens, tokens]`.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("masked_reference")
    try:
        return model(torch.tensor([tokens]), use_cache=False, masks=masks).logits[0]
    finally:
        model.set_attn_implementation(before)
