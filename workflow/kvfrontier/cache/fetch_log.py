"""What the decode steps of one layer brought from host memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class FetchLog:
    """Sums over decode steps and rows of the batch; lists hold one number a KV head.

    row_steps: rows x steps. available: tokens to choose from; chosen: those that attention read of them (the step's
    own token is neither); reused: those of `chosen` that lay on the device from the step before.
    most: the largest `chosen` of any step and row. copied_bytes: what crossed the link. device_bytes: the most that
    fetched tokens of this layer and others took on the device at once, of one row.
    """

    row_steps: int = 0
    available: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    most: list[int] = field(default_factory=list)
    copied_bytes: int = 0
    device_bytes: float = 0.0

    def add_step(self, available: Tensor, chosen: Tensor, reused: Tensor) -> None:
        """One decode step; all `[batch, kv_heads]`, on the CPU."""
        self.row_steps += len(chosen)
        self.available = _sums(self.available, available.sum(0).tolist())
        self.chosen = _sums(self.chosen, chosen.sum(0).tolist())
        self.reused = _sums(self.reused, reused.sum(0).tolist())
        self.most = _largest(self.most, chosen.amax(0).tolist())

    def merged(self, other: FetchLog) -> FetchLog:
        """Both together: the same layer of another batch."""
        return FetchLog(
            self.row_steps + other.row_steps,
            _sums(self.available, other.available),
            _sums(self.chosen, other.chosen),
            _sums(self.reused, other.reused),
            _largest(self.most, other.most),
            self.copied_bytes + other.copied_bytes,
            max(self.device_bytes, other.device_bytes),
        )


def _sums(old: list[int], new: list[int]) -> list[int]:
    return [a + b for a, b in zip(old, new, strict=True)] if old and new else old or new


def _largest(old: list[int], new: list[int]) -> list[int]:
    return [max(pair) for pair in zip(old, new, strict=True)] if old and new else old or new
