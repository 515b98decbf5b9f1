"""What a strategy is: settings, a formula for what it keeps, and what it does to one layer's cache.

A strategy's fields are read when the plan is made, often where torch is not wanted: import torch inside methods.
A strategy holds no state; what belongs to a sequence lives in the layer's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from kvfrontier.parameters import settings

if TYPE_CHECKING:
    from kvfrontier.cache.layer import LayerCache
    from kvfrontier.cache.view import LayerView
    from kvfrontier.plan.model import ModelSpec


@settings
class Strategy:
    """Base of all strategies; subclasses are plugins and add fields. Hooks get one layer at a time."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    """What must be handed over: `attention_mass` (column sums of the softmax, per query head; `decode_mass`: at decode
    steps alone), `rotation`, `queries_ahead` (see LayerView), notes on tokens (`cache/notes.py`)."""
    acts: ClassVar[bool] = True
    """False: every token stays as the model made it."""
    scoring: ClassVar[str] = "lse"
    """How `attention_mass` is computed; a strategy may make it a field."""
    even_heads: ClassVar[bool] = True
    """All KV heads of a layer keep as many tokens; if not, the layer's mean is what the formula says."""
    keeps_at_most: ClassVar[bool] = False
    """`kept_tokens` is an upper bound, not what is kept to the token."""
    storage_drops: ClassVar[bool] = True
    """Whether `storage` can lose single tokens while decoding."""
    chunk_tokens: ClassVar[int | None] = None
    """Prefills and extensions are read so many tokens at a time, with `after_chunk` between, whatever chunks the engine
    is set to; None: the engine reads as it likes, which changes no result. Made a field, with `chunks` in `needs`."""
    isolated_chunks: ClassVar[bool] = False
    """True: a prefill's chunk attends to itself alone. Extensions and decode steps see all that is kept."""

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Tokens held per KV head after a prefill of `prompt_tokens` and `generated_tokens` decode steps (the formula):
        the mean over layers and heads. After several turns, with all tokens read and the steps since: a bound."""
        return prompt_tokens + generated_tokens

    def kept_by_layer(self, layers: int, prompt_tokens: int, generated_tokens: int = 0) -> list[int]:
        """`kept_tokens` of each of `layers` layers, mean over its heads."""
        return [self.kept_tokens(prompt_tokens, generated_tokens)] * layers

    def peak_tokens(self, prompt_tokens: int, generated_tokens: int) -> int:
        """Slots needed at once, a mean as `kept_tokens`: a decode step's token is stored before the strategy evicts."""
        during = (self.kept_tokens(prompt_tokens, step) + 1 for step in range(generated_tokens))
        return max(self.kept_tokens(prompt_tokens, 0), *during, 0)

    def kv_bytes(self, spec: ModelSpec, element_bytes: int, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Bytes of one sequence's keys and values in all layers and tiers (the formula); element_bytes: the model's."""
        return self.kept_tokens(prompt_tokens, generated_tokens) * spec.kv_bytes_per_token(element_bytes)

    def most_attended(self, tokens: int, layer_idx: int = -1) -> int:
        """The most of `tokens` older ones that a decode step of that layer may attend to, per KV head."""
        return self.kept_tokens(tokens)

    def exact(self) -> Literal["", "readings", "always"]:
        """What attends to every token as the model made it, so that it answers as the full cache does: everything, or
        prefills and extensions alone (what is asked without a decode step), or neither."""
        return "" if self.acts else "always"

    def requires(self) -> frozenset[str]:
        """`needs`, for these settings."""
        return self.needs

    def check(self, spec: ModelSpec) -> None:
        """Raise Unsupported for settings that cannot run; called when the plan is made."""

    def made_of(self) -> tuple[str, ...]:
        """Names of other strategies whose code this one runs: it counts in the fingerprint."""
        return ()

    def storage(self, layer_idx: int, layers: int) -> LayerCache:
        """An empty layer of a new batch: how and where its tokens lie between calls, as `cache/layer.py` demands."""
        from kvfrontier.cache.layer import LayerCache

        return LayerCache()

    def storages(self, layers: int) -> list[LayerCache]:
        """All layers of a new batch; for a strategy whose layers share something."""
        return [self.storage(layer_idx, layers) for layer_idx in range(layers)]

    def memories(self, device_kind: str) -> dict[str, str]:
        """What a row must say of other memories than the device's, as facts of its provenance: `kv_tier`, `kv_link`."""
        return {}

    def row_weighting(self) -> tuple[float, int]:
        """(decay, delay) of the rows in `attention_mass`: a row counts decay^(rows after it in the call), and only for
        tokens that are at least `delay` older than it."""
        return 1.0, 0

    def before_attention(self, view: LayerView) -> None:
        """Act on one layer when its new tokens are stored and attention has not run (queries are known)."""

    def observe(self, view: LayerView) -> None:
        """Take note of one call's attention: every chunk of a prefill or an extension, and every decode step."""

    def after_chunk(self, view: LayerView) -> None:
        """Act on one layer after the attention of a chunk of `chunk_tokens` that is not the last."""

    def after_prefill(self, view: LayerView) -> None:
        """Act on one layer after the attention of a prefill's or an extension's last chunk."""

    def after_decode(self, view: LayerView) -> None:
        """Act on one layer after the attention of a decode step."""
