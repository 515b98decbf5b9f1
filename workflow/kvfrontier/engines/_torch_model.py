"""What the torch engine asks of a transformers model, and the check that it is of that kind."""

from __future__ import annotations

from transformers import PreTrainedModel

from kvfrontier.errors import Unsupported
from kvfrontier.plan.model import ModelSpec


def check_model(model: PreTrainedModel) -> None:
    """Raise Unsupported for a model whose attention the cache cannot hold: windows, sinks, own attention code."""
    config = model.config.get_text_config()
    kind = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise Unsupported(f"{kind} does not take its attention from transformers' AttentionInterface")
    layer_types = getattr(config, "layer_types", None)
    others = sorted(set(layer_types or ()) - {"full_attention"})
    if others:
        raise Unsupported(f"{kind} has layers of type {', '.join(others)}; the cache holds full attention only")
    window = getattr(config, "sliding_window", None)
    if layer_types is None and window is not None and getattr(config, "use_sliding_window", True):
        raise Unsupported(f"{kind} attends to a window of {window} tokens; the cache holds full attention only")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise Unsupported(f"{kind} caps its attention logits, which the attention kernels here do not")
    if any(hasattr(module, "sinks") for module in model.modules()):
        raise Unsupported(f"{kind} has learnt attention sinks, which the attention kernels here do not know")


def spec_of(model: PreTrainedModel, name: str) -> ModelSpec:
    """The shape of a loaded model."""
    config = model.config.get_text_config()
    q_heads = config.num_attention_heads
    return ModelSpec(
        name=name,
        layers=config.num_hidden_layers,
        q_heads=q_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or q_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // q_heads,
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        max_positions=getattr(config, "max_position_embeddings", None),
        parameters=model.num_parameters(),
    )
