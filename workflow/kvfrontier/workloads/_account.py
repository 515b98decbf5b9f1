"""What a cache held, by tier, layer and head: measured bytes and kept tokens, and the proof that a strategy acted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvfrontier.errors import KVFrontierError
from kvfrontier.metrics import (
    ACHIEVED_BUDGET,
    FACT_SURVIVAL,
    KEPT_AGE_SHARE,
    KEPT_TOKENS,
    KV_FULL_BYTES,
    Measurement,
)
from kvfrontier.strategies import STRATEGIES
from kvfrontier.workloads._fetched import fetch_measurements

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.fetch_log import FetchLog
    from kvfrontier.engines.base import Sequences, Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.strategies.base import Strategy

PROBE_TOKENS = 8
AGES = 10  # bins of the histogram of ages


class KVAccount:
    """Readings of several batches of one cell, averaged over their sequences: bytes and tokens of *one* sequence."""

    def __init__(self, session: Session):
        self.spec = session.spec
        self.full_bytes_per_token = _full_bytes_per_token(session)
        self.sequences: Counter[str] = Counter()  # by phase
        self.bytes: Counter[tuple[str, str]] = Counter()  # by (metric, phase)
        self.kept: Counter[tuple[int, int]] = Counter()  # by (layer, head), at the last phase read
        self.ages: dict[int, list[int]] = {}  # by layer: kept tokens in each tenth of the ages, youngest first
        self.shares: list[float] = []  # kept / seen, a sequence
        self.fetched: list[FetchLog] = []  # by layer
        self.strategy: Strategy | None = None  # which fetched
        self.seen = 0  # tokens, the longest sequence

    def read(self, phase: str, sequences: Sequences) -> None:
        """Add the bytes that `sequences` holds now."""
        seen = sequences.seen_tokens
        self.sequences[phase] += len(seen)
        for metric, value in sequences.bytes_by_metric().items():
            self.bytes[metric, phase] += value
        held = sum(_held_share(self.spec, tokens) for tokens in seen)
        self.bytes[KV_FULL_BYTES, phase] += held * self.full_bytes_per_token

    def read_kept(self, kept: list[Tensor], seen: Sequence[int]) -> None:
        """Add the tokens that each layer's heads keep: `kept` as `kept_counts` gives it."""
        for layer, counts in enumerate(kept):
            for head, count in enumerate(counts.sum(0).tolist()):
                self.kept[layer, head] += count
        rows = sum(counts.float().mean(1) for counts in kept) / len(kept)
        self.shares += [row / tokens for row, tokens in zip(rows.tolist(), seen, strict=True)]

    def read_ages(self, sequences: Sequences) -> None:
        """Add how old each layer's kept tokens are, relative to the tokens seen: heavy hitters may all be old ones."""
        for layer, positions in enumerate(sequences.kept_positions()):
            seen = positions.new_tensor(sequences.seen_tokens)[:, None, None]
            tenths = AGES * (seen - 1 - positions) // seen
            counts = tenths[positions >= 0].bincount(minlength=AGES).tolist()
            self.ages[layer] = [a + b for a, b in zip(self.ages.get(layer, [0] * AGES), counts, strict=True)]

    def read_fetched(self, strategy: Strategy, sequences: Sequences) -> None:
        """Add what decode steps of `sequences` fetched from another memory, if any did."""
        self.strategy, self.seen = strategy, max(self.seen, *sequences.seen_tokens)
        logs = sequences.fetched()
        self.fetched = [a.merged(b) for a, b in zip(self.fetched, logs, strict=True)] if self.fetched else logs

    def measurements(self) -> Iterator[Measurement]:
        """Bytes by metric and phase, kept tokens by layer and head, their ages by layer, and the achieved budget."""
        fetched = list(fetch_measurements(self.strategy, self.fetched, self.seen)) if self.fetched else []
        for (metric, phase), value in self.bytes.items():
            yield Measurement(metric, value / self.sequences[phase], phase)
        for (layer, head), count in self.kept.items():
            yield Measurement(KEPT_TOKENS, count / len(self.shares), layer=layer, head=head)
        for layer, counts in self.ages.items():
            for tenth, count in enumerate(counts):
                yield Measurement(KEPT_AGE_SHARE, count / sum(counts), f"age={tenth / AGES:g}", layer=layer)
        yield from fetched or [Measurement(ACHIEVED_BUDGET, sum(self.shares) / len(self.shares))]


def kept_counts(sequences: Sequences) -> list[Tensor]:
    """Per layer, kept tokens [batch, kv_heads]."""
    return [(positions >= 0).sum(-1) for positions in sequences.kept_positions()]


def fact_survival(
    kept: Sequence[Tensor], row: int, fact: Sequence[int], phase: str, request: int, turn: int | None = None
) -> Iterator[Measurement]:
    """Share of a fact's tokens (`fact`: their positions) that each layer's heads still keep in a row.

    kept: per layer [batch, kv_heads, slots] original positions.
    """
    import torch

    wanted = torch.tensor(fact, device=kept[0].device)
    for layer, positions in enumerate(kept):
        shares = torch.isin(positions[row], wanted).sum(-1) / len(fact)
        for head, share in enumerate(shares.tolist()):
            yield Measurement(FACT_SURVIVAL, share, phase, request=request, turn=turn, layer=layer, head=head)


def require_acted(
    session: Session, strategy: Strategy, kept: list[Tensor], prompts: Sequence[int], generated: int = 0,
    at_most: bool = False,
) -> None:  # fmt: skip
    """Raise KVFrontierError where a sequence keeps, over layers and heads, more or less than the strategy's formula.

    at_most: only more is wrong (after several turns the formula is an upper bound). A strategy that silently kept
    everything, or lost tokens, would otherwise give a beautiful, wrong number. Layers with a window of the model's own
    are left out: no strategy acts on them.
    """
    kept = session.spec.open_only(kept)
    means = (sum(counts.float().mean(1) for counts in kept) / len(kept)).tolist() if kept else []
    for row, (mean, prompt) in enumerate(zip(means, prompts, strict=bool(kept))):
        require_kept(strategy, mean, prompt, generated, f"sequence {row}", at_most)


def require_kept(
    strategy: Strategy, mean: float, prompt: float, generated: int, what: str, at_most: bool = False
) -> None:
    """As `require_acted`, for a mean over layers and heads that is known already."""
    expected = strategy.kept_tokens(round(prompt), generated)
    if mean > expected + 0.5 or (mean < expected - 0.5 and not (at_most or strategy.keeps_at_most)):
        raise KVFrontierError(
            f"{strategy.name} keeps {mean:.1f} tokens per KV head in {what}, its formula says {expected} "
            f"(prompt {prompt:.0f}, {generated} more): the measurement would be of something else"
        )


def _full_bytes_per_token(session: Session) -> float:
    """Bytes of one token in an uncompressed cache of this engine, read from a tiny full cache (once a session)."""
    if "full_bytes_per_token" not in session.memo:
        probe = session.open(STRATEGIES.get("full")())
        probe.prefill([[1] * PROBE_TOKENS])
        held = probe.bytes_by_metric()
        session.memo["full_bytes_per_token"] = (held["kv_device_bytes"] + held["kv_host_bytes"]) / _held_share(
            session.spec, PROBE_TOKENS
        )
    return session.memo["full_bytes_per_token"]


def _held_share(spec: ModelSpec, tokens: int) -> float:
    """Tokens that an uncompressed cache holds, mean over layers."""
    if not spec.windows:
        return tokens
    return (spec.open_part().layers * tokens + spec.held_in_windows(tokens)) / spec.layers
