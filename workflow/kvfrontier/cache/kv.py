"""The KV cache of a batch under one strategy, and the attention function that transformers models call.

The model gets `kv_cache=` as a forward keyword, which reaches the attention function; transformers' own cache classes
are not used, and the model is not patched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from kvfrontier.cache.attention import attend_block, attend_decode
from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.scores import RowWeights
from kvfrontier.cache.step_timer import UNTIMED, StepTimer
from kvfrontier.cache.view import LayerView, Phase
from kvfrontier.metrics import FETCHED_BYTES, STORED_BYTES

ATTENTION = "kvfrontier"


@dataclass
class Call:
    """One forward call: `lengths` new tokens a row, at `positions` `[batch, new]`; `last`: its prefill's last chunk."""

    phase: Phase
    lengths: list[int]
    positions: Tensor
    last: bool
    monolithic: bool = False  # the whole prompt in one call
    shared: dict[str, Any] = field(default_factory=dict)


class KVCache:
    """All layers of a batch. The strategy acts through its hooks; lists hold one number a row."""

    def __init__(
        self, strategy: Any, num_layers: int, kernel: Literal["sdpa", "eager"], rotary: Callable[[], Any],
        queries_ahead: Callable[[int, int], Tensor] | None = None,
    ):  # fmt: skip
        """queries_ahead: as in LayerView, for a layer and a number of layers after it; None: not required."""
        self.strategy = strategy
        self.layers: list[LayerCache] = strategy.storages(num_layers)
        self.seen_tokens: list[int] = []
        self.read_tokens: list[int] = []
        self.row_seeds: list[int] = []
        self.decoded_tokens = 0
        self.call: Call | None = None
        self._kernel = kernel
        self._make_rotary = rotary
        self._queries_ahead = queries_ahead
        self.timer: StepTimer = UNTIMED
        required = strategy.requires()
        self._scoring = strategy.scoring if "attention_mass" in required else None
        self._decode_mass = bool(required & {"attention_mass", "decode_mass"})
        self._decay, self._delay = strategy.row_weighting()

    @cached_property
    def _rotary(self) -> Any:
        return self._make_rotary()

    @property
    def slots(self) -> int:
        """The largest number of slots in use in any layer."""
        return max(layer.slots for layer in self.layers)

    def plan_capacity(self, tokens: int, decode_steps: int, least: int = 0) -> None:
        """Size the layers' next allocations for `tokens` read so far and so many decode steps after them.

        least: slots that are needed in any case, as for tokens that enter before the strategy evicts.
        """
        growth = self.strategy.peak_tokens(tokens, decode_steps) - self.strategy.kept_tokens(tokens)
        kept = self.strategy.kept_by_layer(len(self.layers), tokens)
        for layer, slots in zip(self.layers, kept, strict=True):
            layer.target_capacity, layer.growth = max(slots + growth, least), growth

    def begin(self, call: Call) -> None:
        """Announce a forward call: its tokens count as seen from here on."""
        self.call = call
        self.seen_tokens = [seen + new for seen, new in zip(self.seen_tokens, call.lengths, strict=True)]
        if call.phase == "decode":
            self.decoded_tokens += 1
        else:
            self.read_tokens = [read + new for read, new in zip(self.read_tokens, call.lengths, strict=True)]
            self.decoded_tokens = 0

    def attend(self, layer_idx: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, attend, let the strategy act; output `[batch, q_heads, new, head_dim]`."""
        call, layer = self.call, self.layers[layer_idx]
        before = layer.counts.clone()
        if call.monolithic:
            layer.borrow(keys, values, call.positions, call.lengths)
            before = torch.zeros_like(layer.counts)
        else:
            layer.append(keys, values, call.positions, call.lengths)
        view = LayerView(
            layer_idx, len(self.layers), layer, queries, scale, call.phase, call.lengths, self.seen_tokens,
            self.read_tokens, self.decoded_tokens, self.row_seeds, self._rotate, call.shared, caches=self.layers,
            queries_ahead=self._queries_ahead and partial(self._queries_ahead, layer_idx), timer=self.timer,
        )  # fmt: skip
        self.strategy.before_attention(view)
        if call.phase == "decode":
            out, mass = attend_decode(queries, *layer.used(), scale, layer.valid(), self._decode_mass)
            if mass is not None and self._delay:
                mass = mass.masked_fill(self._first_rows(layer).repeat_interleave(_group(queries, keys), 1) > 0, 0)
        else:
            out, mass = self._attend_new(layer, queries, scale, before)
        self._act(view, mass)
        return out

    def _act(self, view: LayerView, mass: Tensor | None) -> None:
        view.attention_mass = mass
        self.strategy.observe(view)
        if view.phase == "decode":
            self.strategy.after_decode(view)
        elif self.call.last:
            self.strategy.after_prefill(view)
        elif self.strategy.chunk_tokens is not None:
            self.strategy.after_chunk(view)
        if self.call.last:
            view.cache.settle(shrink=view.phase != "decode")

    def _rotate(self, keys: Tensor, by_positions: Tensor) -> Tensor:
        return self._rotary(keys, by_positions)

    def _attend_new(
        self, layer: LayerCache, queries: Tensor, scale: float, before: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Several new queries a row over the stored slots and, causally, the new ones."""
        keys, values = layer.used()
        if before.numel() == 0:
            before = torch.zeros_like(layer.counts)
        weights = RowWeights(self._decay, self._first_rows(layer) if self._scoring and self._delay else None)
        alone = self.strategy.isolated_chunks and self.call.phase == "prefill" and bool(before.any())
        if layer.uniform and not alone and bool((before == before[0, 0]).all()):
            return attend_block(queries, keys, values, scale, int(before[0, 0]), self._kernel, self._scoring, weights)
        out = queries.new_zeros(*queries.shape[:3], values.shape[3])
        mass = None
        if self._scoring is not None:
            mass = torch.zeros(*queries.shape[:2], layer.slots, dtype=torch.float32, device=queries.device)
        group = _group(queries, keys)
        for rows, heads, start, new in _blocks(before, self.call.lengths):
            q_heads = slice(heads.start * group, heads.stop * group)
            seen = slice(start if alone else 0, start + new)
            part, part_mass = attend_block(
                queries[rows, q_heads, :new], keys[rows, heads, seen], values[rows, heads, seen],
                scale, start - seen.start, self._kernel, self._scoring, weights.of(rows, heads, seen),
            )  # fmt: skip
            out[rows, q_heads, :new] = part
            if mass is not None:
                mass[rows, q_heads, seen] = part_mass
        return out, mass

    def _first_rows(self, layer: LayerCache) -> Tensor:
        """The first of this call's queries that is `delay` after each slot's token `[batch, kv_heads, slots]`."""
        return layer.used_positions() + self._delay - self.call.positions[:, :1, None]

    def fork(self) -> KVCache:
        """An independent deep copy."""
        copy = KVCache(self.strategy, 0, self._kernel, self._make_rotary, self._queries_ahead)
        copy.layers = deepcopy(self.layers)  # together: what they share, the copies share
        copy.seen_tokens, copy.read_tokens = list(self.seen_tokens), list(self.read_tokens)
        copy.row_seeds = list(self.row_seeds)
        copy.decoded_tokens = self.decoded_tokens
        return copy

    def bytes_by_metric(self) -> dict[str, int]:
        """Exact tensor bytes by metric name."""
        return {
            "kv_device_bytes": sum(layer.used_bytes() for layer in self.layers),
            "kv_host_bytes": sum(layer.host_bytes() for layer in self.layers),
            "kv_aux_bytes": sum(layer.aux_bytes() for layer in self.layers),
            "kv_reserved_bytes": sum(layer.reserved_bytes() for layer in self.layers),
        }

    def copied_bytes(self) -> dict[str, int]:
        """Bytes that went over the layers' links so far, by metric name; nothing without a link."""
        links = {id(layer.link): layer.link for layer in self.layers if hasattr(layer, "link")}.values()
        if not links:
            return {}
        for link in links:
            link.drain()
        return {
            FETCHED_BYTES: sum(link.fetched_bytes for link in links),
            STORED_BYTES: sum(link.stored_bytes for link in links),
        }


def _group(queries: Tensor, keys: Tensor) -> int:
    """Query heads of one KV head."""
    return queries.shape[1] // keys.shape[1]


def _blocks(before: Tensor, lengths: Sequence[int]) -> Iterator[tuple[slice, slice, int, int]]:
    """(rows, KV heads, slots stored before, new tokens) of rectangular parts: the batch, a row, or one head of it."""
    if len(set(lengths)) == 1 and bool((before == before[0, 0]).all()):
        yield slice(0, before.shape[0]), slice(0, before.shape[1]), int(before[0, 0]), lengths[0]
        return
    for row, new in enumerate(lengths):
        if new == 0:
            continue
        counts = before[row].tolist()
        if len(set(counts)) == 1:
            yield slice(row, row + 1), slice(0, len(counts)), counts[0], new
        else:
            yield from ((slice(row, row + 1), slice(h, h + 1), count, new) for h, count in enumerate(counts))


def kv_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    kv_cache: KVCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in place of its own attention; output `[batch, new, q_heads, head_dim]`."""
    if kv_cache is None:
        raise RuntimeError("this model belongs to a kvfrontier session; close the session before calling the model")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return kv_cache.attend(module.layer_idx, query, key, value, scale).transpose(1, 2), None


AttentionInterface.register(ATTENTION, kv_attention)
