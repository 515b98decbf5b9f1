"""What an engine promises. It knows nothing of tokenizers' text, stores or campaigns: token ids in, numbers out.

Three levels: an `Engine` is configuration (validated when the plan is made, no torch), a `Session` is a loaded model,
`Sequences` are a batch that decodes over one KV cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from kvfrontier.errors import Unsupported
from kvfrontier.parameters import settings

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.fetch_log import FetchLog
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model, ModelSpec
    from kvfrontier.strategies.base import Strategy

PHASES = ("prefill", "decode")
Notes = Mapping[str, Sequence[float]]
"""What a workload tells of one row's tokens, one number each, by kind: see `cache/notes.py`."""


def require_open_layers(strategy: Strategy, spec: ModelSpec) -> None:
    """Raise Unsupported where windows of the model's own leave the strategy no layer to act on."""
    if strategy.acts and spec.windows and None not in spec.windows:
        raise Unsupported(
            f"every layer of {spec.name} attends to a window of {max(spec.windows)} tokens and holds no more: "
            f"nothing is left for '{strategy.name}' to act on"
        )


class Request(NamedTuple):
    """What a scheduler is asked for. arrival_s: when it is meant to come, in seconds from the start."""

    prompt: Sequence[int]
    output_tokens: int
    arrival_s: float = 0.0


@dataclass
class Generation:
    """What a number of requests did. Times: seconds since each one's arrival (of a batch that is the start, when it is
    submitted), host clock, device synchronized.

    tokens: one list of output ids a request; token_times_s: the time of each of them.
    memory: `(metric, phase, bytes)` readings, metric a name in `metrics.py`, phase one of PHASES; an empty phase where
    requests arrive one after the other, so that reading and decoding go on beside each other.
    counted: `(metric, phase, value)` of what else the engine counts of a batch.
    found_tokens, queue_s: of each request, prompt tokens that lay in a cache, and the time until its first step began;
    of engines that schedule.
    """

    tokens: list[list[int]]
    token_times_s: list[list[float]]
    memory: list[tuple[str, str, float]] = field(default_factory=list)
    counted: list[tuple[str, str, float]] = field(default_factory=list)
    kept_tokens: list[list[float]] = field(default_factory=list)  # [layer][kv_head], mean over the batch
    seen_tokens: float = 0.0  # mean over the batch: prompt + decoded tokens that entered the cache
    fetched: list[FetchLog] = field(default_factory=list)  # [layer], of strategies that fetch while decoding
    found_tokens: list[int] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)


class Sequences(ABC):
    """A batch of token sequences over one KV cache managed by one strategy. Rows may differ in length."""

    @abstractmethod
    def prefill(self, prompts: Sequence[Sequence[int]], reserve_tokens: int = 0, notes: Sequence[Notes] = ()) -> Tensor:
        """Read the prompts, compress as the strategy says; logits [batch, vocab] after each row's last token.

        reserve_tokens: how many tokens will be decoded or extended later (sizes the cache; growing is allowed, slow).
        """

    def score(self, rows: Sequence[Sequence[int]], last: int) -> Tensor:
        """Start a batch by reading rows of one length at once; logits [batch, last, vocab] after their last tokens."""
        raise Unsupported(f"{type(self).__name__} does not read a text and its continuation at once")

    @abstractmethod
    def extend(
        self, tokens: Sequence[Sequence[int]], all_logits: bool = False, notes: Sequence[Notes] = ()
    ) -> Tensor | list[Tensor]:
        """Append several tokens a row (next chat turn, a question) and compress again.

        Logits [batch, vocab] after the last token, or with `all_logits` one [tokens, vocab] tensor a row.
        """

    @abstractmethod
    def decode(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """Append one token a row ([batch]); logits [batch, vocab]. A decode step in the strategy's sense."""

    @abstractmethod
    def fork(self) -> Sequences:
        """An independent copy: what is done to it never changes this one."""

    @abstractmethod
    def kept_positions(self) -> list[Tensor]:
        """Per layer, original positions of the kept tokens [batch, kv_heads, slots], ascending, -1 in unused slots."""

    @abstractmethod
    def bytes_by_metric(self) -> dict[str, int]:
        """Exact bytes now: `kv_device_bytes`, `kv_host_bytes`, `kv_disk_bytes` (where there are any), `kv_aux_bytes`,
        `kv_reserved_bytes`."""

    def fetched(self) -> list[FetchLog]:
        """Per layer, what decode steps fetched from another memory so far; empty where the strategy fetches nothing."""
        return []

    @property
    @abstractmethod
    def seen_tokens(self) -> list[int]:
        """Tokens read so far, a row: the logical lengths."""


class Session(ABC):
    """A loaded model on a device. `memo` lets a workload keep what several cells need (a full cache's logits)."""

    spec: ModelSpec
    tokenizer: Any  # a transformers tokenizer, or None (simulator)
    memo: dict[Any, Any]

    @abstractmethod
    def open(self, strategy: Strategy) -> Sequences:
        """An empty batch under `strategy`. Raises Unsupported where the engine offers no single steps."""

    @abstractmethod
    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        """Prefill `prompts` and produce exactly `output_tokens` greedy tokens for each (end-of-text is ignored)."""

    def serve(self, strategy: Strategy, requests: Sequence[Request], may_find: bool = False) -> Generation:
        """Serve requests by the engine's own scheduler, each when it arrives; a late start is the engine's time.

        may_find: prompt tokens may lie in a cache from what was served before; if not, the engine's settings decide.
        Raises Unsupported where the engine has no scheduler, or where a request is too long for it.
        """
        raise Unsupported(f"{type(self).__name__} answers whole batches; it has no scheduler")

    def free_unused(self) -> None:
        """Give back what nothing refers to any more, as after an allocation that failed; forget cached prompts."""

    @abstractmethod
    def close(self) -> None:
        """Free the model and its memory."""


@settings
class Engine(ABC):
    """Settings of an engine; subclasses are plugins and add fields."""

    name: ClassVar[str]
    offers: ClassVar[frozenset[str]] = frozenset()
    """What workloads may need: of `steps` (Sequences), `logits`, `kept_positions`, `text` (a tokenizer), `turns` (each
    `extend` is compressed, too), `schedule` (`serve`), `memory_limit_gb` (one is set)."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions change the numbers."""
    source: ClassVar[Literal["measured", "model"]] = "measured"
    environment: ClassVar[str] = "core"
    """Whose Python runs it. Others than `core` are pinned in envs/NAME.txt and made by `kvfrontier env make NAME`."""

    def environment_on(self, device: Device) -> str:
        """`environment`; an engine may have one for each kind of device."""
        return self.environment

    def reloadable(self, device: Device) -> frozenset[str]:
        """Parameters that may change from one engine of a process to the next, where a process costs far more than an
        engine in it. Cells that differ in these alone share a shard; those of one setting still run in a row. What a
        worker takes of its machine (`threads`, `gpus`) and its environment are the shard's, so never among them."""
        return frozenset()

    def check(self, strategy: Strategy, spec: ModelSpec) -> None:
        """Raise Unsupported for what this engine cannot do; called when the plan is made."""

    def check_device(self, device: Device) -> None:
        """Raise Unsupported for settings that cannot run on that device; called when the plan is made."""

    def host_bytes(self, spec: ModelSpec, device: Device) -> int:
        """Host memory that it reserves for keys and values, whatever a cell needs: a cluster's job asks for it, too."""
        return 0

    @abstractmethod
    def load(self, model: Model, device: Device) -> Session:
        """Load a model (`kvfrontier.plan.model.Model`) on a device (`kvfrontier.plan.device.Device`)."""
