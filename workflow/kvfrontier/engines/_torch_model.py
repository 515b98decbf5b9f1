"""What the torch engine asks of a transformers model, and the check that it is of that kind."""

from __future__ import annotations

from transformers import PreTrainedModel

from kvfrontier.errors import Unsupported
from kvfrontier.models.config_shape import shape_of, windows_of
from kvfrontier.plan.model import ModelSpec

NARROWEST = 3
"""Tokens of a window: with fewer, nothing or a single token is held, and a budget of 1 means everything."""


def check_model(model: PreTrainedModel) -> None:
    """Raise Unsupported for a model whose attention the cache cannot hold: other kinds, capped logits, own code."""
    config = model.config.get_text_config()
    kind = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise Unsupported(f"{kind} does not take its attention from transformers' AttentionInterface")
    layer_types = getattr(config, "layer_types", None)
    others = sorted(set(layer_types or ()) - {"full_attention", "sliding_attention"})
    if others:
        raise Unsupported(f"{kind} has layers of type {', '.join(others)}; the cache holds full and sliding attention")
    narrow = [window for window in windows_of(config) if window is not None and window < NARROWEST]
    if narrow:
        raise Unsupported(f"{kind} attends to windows of {narrow[0]} tokens; {NARROWEST} are the fewest that work here")
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        raise Unsupported(f"{kind} attends in both directions; a cache holds the past alone")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise Unsupported(f"{kind} caps its attention logits, which the attention kernels here do not")


def spec_of(model: PreTrainedModel, name: str) -> ModelSpec:
    """The shape of a loaded model."""
    config = model.config.get_text_config()
    return ModelSpec(name=name, **shape_of(config), windows=windows_of(config), parameters=model.num_parameters())
