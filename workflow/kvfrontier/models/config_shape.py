"""A model's shape out of its transformers config: what a cache holds of a token, and where attention has windows."""

from __future__ import annotations

from typing import Any


def shape_of(config: Any) -> dict[str, Any]:
    """The fields of ModelSpec that a text config says.

    Multi-head latent attention (DeepSeek) reaches the cache expanded: a key of its two parts and a value for each head.
    """
    q_heads = config.num_attention_heads
    latent = getattr(config, "kv_lora_rank", None) is not None and getattr(config, "qk_rope_head_dim", None) is not None
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // q_heads
    key_dim = config.qk_nope_head_dim + config.qk_rope_head_dim if latent else head_dim
    value_dim = config.v_head_dim if latent else head_dim
    return {
        "layers": config.num_hidden_layers,
        "q_heads": q_heads,
        "kv_heads": q_heads if latent else getattr(config, "num_key_value_heads", None) or q_heads,
        "head_dim": key_dim,
        "value_head_dim": None if value_dim == key_dim else value_dim,
        "hidden": config.hidden_size,
        "vocab": config.vocab_size,
        "max_positions": getattr(config, "max_position_embeddings", None),
    }


def windows_of(config: Any) -> tuple[int | None, ...]:
    """By layer, how many tokens a query sees, itself included; None: all of them. Empty where no layer has a window."""
    window, layer_types = (getattr(config, name, None) for name in ("sliding_window", "layer_types"))
    if window is None or (layer_types is None and not getattr(config, "use_sliding_window", True)):
        return ()
    if layer_types is None:
        return (window,) * config.num_hidden_layers
    windows = tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    return windows if any(windows) else ()
