"""The KV cache of a batch under one strategy: `interface.py` brings each layer's queries, keys and values here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from kvfrontier.cache.account import bytes_by_metric, copied_bytes, links_of
from kvfrontier.cache.attention import attend_block
from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.notes import RowNotes
from kvfrontier.cache.scores import RowWeights
from kvfrontier.cache.step_timer import UNTIMED, StepTimer
from kvfrontier.cache.view import LayerView, Phase
from kvfrontier.cache.windowed import ModelWindow, attend_window


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
    """All layers of a batch. The strategy acts through its hooks; lists hold one number a row.

    windows: by layer, how many tokens a query sees there; None: all of them. To a strategy the model is its layers that
    see all; the others hold their window in full precision.
    queries_ahead: as in LayerView, for a layer and a number of layers after it; None: not required.
    """

    def __init__(
        self, strategy: Any, windows: Sequence[int | None], kernel: Literal["sdpa", "eager"], rotary: Callable[[], Any],
        queries_ahead: Callable[[int, int], Tensor] | None = None,
    ):  # fmt: skip
        self.strategy = strategy
        self.windows = tuple(windows)
        self._open = [layer_idx for layer_idx, window in enumerate(windows) if window is None]
        self._model_windows = {window: ModelWindow(window) for window in windows if window is not None}
        acted_on = iter(strategy.storages(len(self._open)))
        self.layers: list[LayerCache] = [next(acted_on) if window is None else LayerCache() for window in windows]
        self.seen_tokens: list[int] = []
        self.read_tokens: list[int] = []
        self.row_seeds: list[int] = []
        self.notes: list[RowNotes] = []
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

    def plan_capacity(self, tokens: int, decode_steps: int, entering: int = 0, chunk: int = 0) -> None:
        """Size the layers' next allocations for `tokens` read so far and so many decode steps after them.

        entering, chunk: until so many more have entered, in such chunks, with room for what comes before evictions.
        """
        owners = [(self.strategy, self._open, self.strategy.chunk_tokens is not None)]
        for window, model in self._model_windows.items():
            owners.append((model, [index for index, own in enumerate(self.windows) if own == window], True))
        for owner, layers, evicts_by_chunk in owners:
            growth = owner.peak_tokens(tokens, decode_steps) - owner.kept_tokens(tokens)
            held = max((self.layers[index].slots for index in layers), default=0)
            least = held + entering if entering else 0
            if evicts_by_chunk:
                least = min(least, max(held, owner.kept_tokens(tokens)) + chunk)
            for index, slots in zip(layers, owner.kept_by_layer(len(layers), tokens), strict=True):
                layer = self.layers[index]
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

    def attend(
        self, layer_idx: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        """Store the new keys and values, attend, let the strategy act; output `[batch, q_heads, new, value_dim]`.

        sinks: `[q_heads]`, logits beside the keys' in every softmax.
        """
        call, layer = self.call, self.layers[layer_idx]
        before = layer.counts.clone()
        if call.monolithic:
            layer.borrow(keys, values, call.positions, call.lengths)
            before = torch.zeros_like(layer.counts)
        else:
            layer.append(keys, values, call.positions, call.lengths)
        if (window := self.windows[layer_idx]) is not None:
            return self._attend_window(layer, window, queries, scale, sinks)
        place = self._open.index(layer_idx)
        if place + 1 < len(self._open):
            self.layers[self._open[place + 1]].prefetch()
        view = LayerView(
            place, len(self._open), layer, queries, scale, call.phase, call.lengths,
            self.seen_tokens, self.read_tokens, self.decoded_tokens, self.row_seeds, self._rotate, call.shared,
            self.notes, sinks, caches=[self.layers[index] for index in self._open],
            queries_ahead=self._queries_ahead and partial(self._queries_ahead, layer_idx), timer=self.timer,
        )  # fmt: skip
        self.strategy.before_attention(view)
        if call.phase == "decode":
            out, mass = layer.attend(queries, scale, self._decode_mass, sinks)
            if mass is not None and self._delay:
                mass = mass.masked_fill(self._first_rows(layer).repeat_interleave(_group(queries, keys), 1) > 0, 0)
        else:
            out, mass = self._attend_new(layer, queries, scale, before, sinks)
        view.output = out
        self._act(view, mass)
        return view.output

    def _attend_window(
        self, layer: LayerCache, window: int, queries: Tensor, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """A layer of the model's own: its queries see their window, and what has left it goes."""
        call = self.call
        if call.phase == "decode":
            out, _ = layer.attend(queries, scale, False, sinks)
        else:
            alone = self.strategy.isolated_chunks and call.phase == "prefill"
            out = attend_window(
                queries, *layer.used(), scale, call.positions, layer.used_positions(), window, sinks,
                call.positions[:, :1] if alone else None, call.monolithic,
            )  # fmt: skip
        self._model_windows[window].trim(layer)
        if call.last:
            layer.settle(shrink=call.phase != "decode")
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
        else:
            view.cache.pause()

    def _rotate(self, keys: Tensor, by_positions: Tensor) -> Tensor:
        return self._rotary(keys, by_positions)

    def _attend_new(
        self, layer: LayerCache, queries: Tensor, scale: float, before: Tensor, sinks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Several new queries a row over the stored slots and, causally, the new ones."""
        keys, values = layer.used()
        if before.numel() == 0:
            before = torch.zeros_like(layer.counts)
        weights = RowWeights(self._decay, self._first_rows(layer) if self._scoring and self._delay else None)
        alone = self.strategy.isolated_chunks and self.call.phase == "prefill" and bool(before.any())
        if layer.uniform and not alone and bool((before == before[0, 0]).all()):
            return attend_block(
                queries, keys, values, scale, int(before[0, 0]), self._kernel, self._scoring, weights, sinks
            )
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
                None if sinks is None else sinks[q_heads],
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
        twin = copy(self)
        twin.layers = deepcopy(self.layers)  # together: what they share, the copies share
        twin.notes = [{kind: list(said) for kind, said in row.items()} for row in self.notes]
        twin.timer = UNTIMED
        twin.seen_tokens, twin.read_tokens = list(self.seen_tokens), list(self.read_tokens)
        return twin

    def bytes_by_metric(self) -> dict[str, int]:
        """Exact tensor bytes by metric name; a file's where there is one."""
        return bytes_by_metric(self.layers)

    def copied_bytes(self) -> dict[str, int]:
        """Bytes that went over the layers' links so far, by metric name; nothing without a link."""
        return copied_bytes(self.layers)

    def start_links(self) -> None:
        """Let the layers' links start their threads before memory is scarce."""
        for link in links_of(self.layers):
            link.start()


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
