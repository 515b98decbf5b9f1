"""The attention function that transformers models call, which hands each layer to its batch's `KVCache`.

The model gets `kv_cache=` as a forward keyword, which reaches the attention function; transformers' own cache classes
are not used, and the model is not patched.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from kvfrontier.cache.kv import KVCache
from kvfrontier.errors import Unsupported

ATTENTION = "kvfrontier"


def kv_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    kv_cache: KVCache | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in place of its own attention; output `[batch, new, q_heads, value_dim]`.

    sliding_window, s_aux (logits of attention sinks), softcap: what models say beside, of which nothing is overheard.
    """
    if kv_cache is None:
        raise RuntimeError("this model belongs to a kvfrontier session; close the session before calling the model")
    kind, layer_idx = type(module).__name__, module.layer_idx
    if sliding_window != kv_cache.windows[layer_idx] and sliding_window is not None:
        raise Unsupported(f"{kind} attends to a window in layer {layer_idx}, which its config does not say")
    if kwargs.get("softcap") is not None or (s_aux is None and getattr(module, "sinks", None) is not None):
        raise Unsupported(f"{kind} caps attention logits, or has sinks that it does not hand over")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return kv_cache.attend(layer_idx, query, key, value, scale, s_aux).transpose(1, 2), None


AttentionInterface.register(ATTENTION, kv_attention)
