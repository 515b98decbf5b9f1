"""Re-rotating keys: what a rolled position scheme needs without storing keys unrotated."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from kvfrontier.cache.precise import precise
from kvfrontier.errors import Unsupported

_FIXED = ("default", "linear", "llama3", "yarn")  # frequencies that do not depend on the sequence length


class Rotary:
    """The model's rotary frequencies, applied as one more rotation: R(a) R(b) = R(a + b)."""

    def __init__(self, inv_freq: Tensor):
        self.inv_freq = inv_freq.float()  # [rotary_dim / 2]

    def __call__(self, keys: Tensor, by_positions: Tensor) -> Tensor:
        """Rotate keys `[batch, kv_heads, n, head_dim]` forward by `[batch]` positions, in float32 or float64."""
        half = self.inv_freq.shape[0]
        angle = by_positions.to(self.inv_freq)[:, None] * self.inv_freq  # [batch, rotary_dim / 2]
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        first, second = precise(keys[..., :half]), precise(keys[..., half : 2 * half])
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(keys.dtype)
        return torch.cat((rotated, keys[..., 2 * half :]), -1)

    @classmethod
    def of(cls, model: nn.Module) -> Rotary:
        """Read the model's frequencies; raises Unsupported where its rotation is not the rotate-half kind we undo."""
        embedding = next((module for module in model.modules() if hasattr(module, "inv_freq")), None)
        kind = type(model).__name__
        if embedding is None:
            raise Unsupported(f"rolled positions need one rotary embedding; {kind} has none, or one a kind of layer")
        if getattr(model.config.get_text_config(), "qk_rope_head_dim", None) is not None:
            raise Unsupported(f"rolled positions need keys that are rotated from their first element; {kind}'s are not")
        if getattr(embedding, "rope_type", "default") not in _FIXED:
            raise Unsupported(f"rolled positions need fixed rotary frequencies; {kind} uses '{embedding.rope_type}'")
        rotary = cls(embedding.inv_freq)
        rotary._verify(model, embedding)
        return rotary

    def _verify(self, model: nn.Module, embedding: nn.Module) -> None:
        """Compare with the model's own rotation at one position."""
        apply = getattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", None)
        width = 2 * self.inv_freq.shape[0]
        probe = torch.linspace(-1, 1, width, device=self.inv_freq.device)[None, None, None]  # [1, 1, 1, rotary_dim]
        position = torch.tensor([[5]], device=self.inv_freq.device)
        try:
            cos, sin = embedding(probe, position)
            theirs = apply(probe, probe, cos, sin)[1] / getattr(embedding, "attention_scaling", 1.0)
            agrees = torch.allclose(self(probe, position[0]), theirs.float(), atol=1e-5)
        except (TypeError, ValueError, RuntimeError):
            agrees = False  # another signature: another kind of rotation
        if not agrees:
            raise Unsupported(f"rolled positions need rotate-half rotary embeddings; {type(model).__name__} differs")
