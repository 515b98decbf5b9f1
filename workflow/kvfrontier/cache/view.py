"""What a strategy sees of one layer during one forward call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.notes import RowNotes
from kvfrontier.cache.step_timer import UNTIMED, StepTimer

Phase = Literal["prefill", "extend", "decode"]


@dataclass(slots=True)
class LayerView:
    """One layer, after its new tokens entered the cache. Lists hold one number a row.

    layer_idx: which layer, of `layers`: those that see all tokens. A model's windowed layers are its own affair.
    queries: rotated queries of the new tokens `[batch, q_heads, new, head_dim]`, right-padded.
    scale: what attention multiplies the products of queries and keys with.
    attention_mass: softmax weight that each slot received from this call's queries, summed over them,
        `[batch, q_heads, slots]` float32; None before attention and where the strategy does not need it (`decode_mass`:
        during prefill and extension). Rows count as the strategy's `row_weighting` says.
    new_tokens: tokens added by this call; seen_tokens: all tokens so far, these included.
    output: of attention `[batch, q_heads, new, value_dim]`; what a strategy puts here is what the layer gives.
    read_tokens: of them, those that came by prefill or extension; decoded_tokens: decode steps since the last of those.
    row_seeds: a number that depends on the tokens of each row's prefill alone, for random choices.
    notes: what is known of each row's tokens, of the kinds that the strategy requires (`cache/notes.py`).
    shared: what one forward call's layers have in common, for a strategy to compute once.
    sinks: `[q_heads]` logits beside the keys', for models that have them: they take weight in every softmax.
    rotate: re-rotates keys `[batch, kv_heads, n, head_dim]` forward by `[batch]` positions.
    caches: the caches of all layers. In a decode step the later ones do not hold its token yet.
    queries_ahead: the rotated queries `[batch, q_heads, 1, head_dim]` that a later layer's projection makes of this
        layer's attention input (argument: how many layers later); in decode steps, where the strategy requires it.
    timer: times parts of a step, where somebody asked for that.
    """

    layer_idx: int
    layers: int
    cache: LayerCache
    queries: Tensor
    scale: float
    phase: Phase
    new_tokens: list[int]
    seen_tokens: list[int]
    read_tokens: list[int]
    decoded_tokens: int
    row_seeds: list[int]
    rotate: Callable[[Tensor, Tensor], Tensor]
    shared: dict[str, Any]
    notes: Sequence[RowNotes] = ()
    sinks: Tensor | None = None
    attention_mass: Tensor | None = None
    output: Tensor | None = None
    caches: Sequence[LayerCache] = ()
    queries_ahead: Callable[[int], Tensor] | None = None
    timer: StepTimer = UNTIMED

    @property
    def group_mass(self) -> Tensor:
        """`attention_mass` summed over the query heads that share a KV head: `[batch, kv_heads, slots]`."""
        batch, q_heads, slots = self.attention_mass.shape
        kv_heads = self.cache.positions.shape[1]
        return self.attention_mass.view(batch, kv_heads, q_heads // kv_heads, slots).sum(2)

    def newest_position(self) -> Tensor:
        """Position of each row's newest token, `[batch, 1, 1]` on the cache's device."""
        device = self.cache.positions.device
        return self.cache.positions.new_tensor([seen - 1 for seen in self.seen_tokens], device=device)[:, None, None]
