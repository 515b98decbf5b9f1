"""Fetching by speculation: which tokens of a host pool a layer will attend to, told by the layer before it."""

from __future__ import annotations

from sys import maxsize
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from kvfrontier.errors import Unsupported
from kvfrontier.parameters import Budget, Count, PositiveInt, settings, tokens_of
from kvfrontier.strategies._tiered import host_memories
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.fetching import FetchingPool
    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.cache.view import LayerView
    from kvfrontier.plan.model import ModelSpec


@settings
class Speculation(Strategy):
    """All tokens lie in host memory; a decode step fetches, of each layer and KV head, those that seem to matter.

    While layer i computes, its attention input goes through the query projection of layer i + 1, and the product with
    that layer's partial keys stands for its attention: inputs of neighbouring layers differ little. The step's own
    token is always attended to and never fetched. Prefills are dense; extensions are, too: they fetch everything.

    A step's share: n tokens before it, of which at most max(k_min, ceil(budget n)) are fetched for a head; budget 1.0
    fetches all, whatever alpha says. `alpha: null` fetches as many as the budget allows.
    """

    needs = frozenset({"queries_ahead", "transfers"})

    budget: Annotated[
        Budget, Field(description="Fetched share of the tokens so far in (0, 1], or a token count: at most")
    ] = 0.2
    alpha: Annotated[
        float | None,
        Field(ge=0, description="Keys whose speculated score is within alpha of the largest count; null: all do"),
    ] = 5.0
    partial_ratio: Annotated[
        float, Field(gt=0, le=1, description="Share of the skewed columns that speculation uses (the paper's r)")
    ] = 0.2
    per_head_count: Annotated[
        bool, Field(description="Each KV head fetches its own count of such keys, not the mean over heads")
    ] = False
    group_reduce: Annotated[
        Literal["max", "mean"], Field(description="A KV head's score from those of its query heads")
    ] = "max"
    k_min: Annotated[PositiveInt, Field(description="Tokens that are fetched for a head at least")] = 1
    sinks: Annotated[Count, Field(description="First tokens that are always fetched (inside the budget)")] = 0
    full_layers: Annotated[PositiveInt, Field(description="First layers that fetch everything")] = 2
    skew_rows: Annotated[
        PositiveInt, Field(description="Queries of the prompt, evenly spaced, that the skewing is found from, at most")
    ] = 2048
    pool_limit: Annotated[Budget, Field(description="Tokens kept in host memory: share of those read, or a count")] = (
        1.0
    )
    pool_policy: Annotated[
        Literal["counter", "lru", "fifo"],
        Field(
            description="What a full pool loses, of its older half: least often fetched, longest not fetched, oldest"
        ),
    ] = "counter"
    overlap: Annotated[
        Literal["none", "copy", "layer"],
        Field(description="Beside the layer before: nothing, the copy (the authors' code), or gather and copy"),
    ] = "none"
    link_gigabytes_per_s: Annotated[
        float | None,
        Field(gt=0, description="Rate of an emulated link (10^9 bytes/s); null: real copies as fast as they go"),
    ] = None

    def check(self, spec: ModelSpec) -> None:
        """Raise Unsupported for a model whose every layer would fetch everything."""
        if None in spec.windows and any(spec.windows):
            raise Unsupported(f"{spec.name} has sliding windows: the layer before is not always one that fetches")
        if spec.layers is not None and self.full_layers >= spec.layers and self.budget != 1.0:
            raise Unsupported(
                f"full_layers {self.full_layers}: {spec.name} has {spec.layers} layers, none would choose"
            )

    def exact(self) -> Literal["", "readings", "always"]:
        """Decode steps choose; prefills and extensions attend to the whole pool, which may have a limit."""
        if self.pool_limit != 1.0:
            return ""
        return "always" if self.budget == 1.0 else "readings"

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Tokens in the pool."""
        return min(prompt_tokens + generated_tokens, self.pool_tokens(prompt_tokens))

    def pool_tokens(self, read_tokens: int) -> int:
        """The most that the pool keeps."""
        if self.pool_limit == 1.0:
            return maxsize
        return max(self.sinks + 2, tokens_of(self.pool_limit, read_tokens))

    def most_attended(self, tokens: int, layer_idx: int = -1) -> int:
        """What a step of that layer may fetch."""
        if not self._chooses(layer_idx):
            return tokens
        return min(tokens, max(self.k_min, self.sinks, tokens_of(self.budget, tokens)))

    def _chooses(self, layer_idx: int) -> bool:
        return self.budget != 1.0 and not 0 <= layer_idx < self.full_layers

    def storages(self, layers: int) -> list[LayerCache]:
        """Pools over one link."""
        from kvfrontier.cache.fetching import FetchingPool
        from kvfrontier.cache.link import Link

        link = Link(self.link_gigabytes_per_s)
        return [FetchingPool(link, self.overlap, **self.pool_options()) for _ in range(layers)]

    def pool_options(self) -> dict[str, Any]:
        """Whether and how a pool differs."""
        return {}

    def memories(self, device_kind: str) -> dict[str, str]:
        """Host memory."""
        return host_memories(device_kind, self.link_gigabytes_per_s)

    def before_attention(self, view: LayerView) -> None:
        """Decode step: begin to fetch for the next layer, wait for this one's tokens. Otherwise: fetch everything."""
        cache, layer_idx = view.cache, view.layer_idx
        if view.phase != "decode":
            if layer_idx:
                view.caches[layer_idx - 1].let_go()
            if not cache.borrowed:
                cache.fetch_all()
            return
        if layer_idx == 0:
            self.start(view, 0)
        self.fetch_ahead(view)
        cache.attend_chosen(view.timer)

    def fetch_ahead(self, view: LayerView) -> None:
        """Begin to fetch what the next layer's step will attend to."""
        if view.layer_idx + 1 < view.layers:
            self.start(view, 1)
            both = view.caches[view.layer_idx : view.layer_idx + 2]
            taken = sum(cache.buffer.nbytes for cache in both) / len(view.seen_tokens)
            view.cache.log.device_bytes = max(view.cache.log.device_bytes, taken)

    def start(self, view: LayerView, ahead: int) -> None:
        """Choose for the layer `ahead` of this one, and begin to fetch that."""
        cache = view.caches[view.layer_idx + ahead]
        with view.timer.part("speculate"):
            slots, counts, room = self.choose(view, ahead)
        cache.start(slots, counts, room, view.timer)

    def choose(self, view: LayerView, ahead: int) -> tuple[Tensor, Tensor, list[int]]:
        """Slots of the layer `ahead` of this one, how many of them count for each head, and how many might have."""
        import torch

        from kvfrontier.cache.skew import partial_scores

        layer_idx = view.layer_idx + ahead
        cache = view.caches[layer_idx]
        available = cache.available()
        room = [self.most_attended(tokens, layer_idx) for tokens in available[:, 0].tolist()]
        if not self._chooses(layer_idx):
            every = torch.arange(int(available.max()), device=cache.positions.device)
            return every.expand(*available.shape, -1), available, room
        scores = partial_scores(cache, view.queries_ahead(ahead), view.scale)
        scores = scores.amax(2) if self.group_reduce == "max" else scores.mean(2)
        positions = cache.used_positions()
        scores = scores.masked_fill(positions < 0, -torch.inf)
        counts = self._counts(scores, torch.tensor(room)[:, None].expand_as(available))
        scores = scores.masked_fill((positions >= 0) & (positions < self.sinks), torch.inf)
        scores, counts = self.limited(cache, scores, counts)
        slots = scores.topk(int(counts.max())).indices
        beyond = torch.arange(slots.shape[2], device=slots.device) >= counts.to(slots.device)[..., None]
        return slots.masked_fill(beyond, cache.slots).sort(-1).values.masked_fill(beyond, 0), counts, room

    def _counts(self, scores: Tensor, most: Tensor) -> Tensor:
        """How many to fetch for each head, `[batch, kv_heads]` on the CPU."""
        if self.alpha is None:
            return most
        near = (scores >= scores.amax(-1, keepdim=True) - self.alpha).sum(-1).cpu()
        if not self.per_head_count:
            near = near.double().mean(1, keepdim=True).long().expand_as(near)
        return near.clamp(min=max(self.k_min, self.sinks)).minimum(most)

    def limited(self, cache: FetchingPool, scores: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Scores `[batch, kv_heads, slots]` and counts, for a strategy that knows another limit: -inf is no choice."""
        return scores, counts

    def observe(self, view: LayerView) -> None:
        """Bring new tokens into the pool, and take note of a prompt's queries."""
        from kvfrontier.cache.skew import note_queries, write_partial

        if self._chooses(view.layer_idx):
            if view.phase == "prefill":
                note_queries(view, self.skew_rows)
            elif view.phase == "decode":
                write_partial(view.cache, view.cache.new[0], view.cache.counts - 1)
        view.cache.store_new()

    def after_prefill(self, view: LayerView) -> None:
        """Hold partial keys; a pool beyond its limit loses its oldest tokens (but for the sinks)."""
        import torch

        from kvfrontier.cache.best import keep_best
        from kvfrontier.cache.skew import find_columns, write_partial

        cache = view.cache
        if self._chooses(view.layer_idx):
            if view.phase == "prefill":
                find_columns(cache, self.partial_ratio)
            write_partial(cache, cache.used()[0])
        kept = torch.minimum(cache.counts, self._limits(view))
        if bool((kept < cache.counts).any()):
            positions = cache.used_positions()
            keep_best(cache, positions.double().masked_fill(positions < self.sinks, torch.inf), kept)

    def after_decode(self, view: LayerView) -> None:
        """A pool beyond its limit loses one token a head."""
        if self.pool_limit == 1.0:
            return
        from kvfrontier.cache.pool_policy import note_use, victims

        note_use(view, self.pool_policy)
        excess = view.cache.counts > self._limits(view)
        if bool(excess.any()):
            view.cache.drop(victims(view.cache, self.pool_policy, self.sinks), None if bool(excess.all()) else excess)

    def _limits(self, view: LayerView) -> Tensor:
        """The most that each row's pool keeps `[batch, 1]`."""
        import torch

        return torch.tensor([self.pool_tokens(read) for read in view.read_tokens])[:, None]
