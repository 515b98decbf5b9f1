"""A workload that costs next to nothing, for measuring what everything around a cell costs. Its numbers are made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvfrontier.metrics import KL_DIVERGENCE, KV_DEVICE_BYTES, KV_FULL_BYTES, TOP1_AGREEMENT, TTFT_S, Measurement
from kvfrontier.workloads import workload
from kvfrontier.workloads.base import Workload

if TYPE_CHECKING:
    from kvfrontier.engines.base import Session
    from kvfrontier.strategies.base import Strategy

STEPS = 6


@workload("tick")
class Tick(Workload):
    """Twenty values: a quality that grows with the kept tokens, their bytes, and times."""

    context_tokens: int = 1000
    batch_size: int = 1
    repeats: int = 5

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        kept = strategy.kept_tokens(self.context_tokens, 0)
        share = kept / self.context_tokens
        per_token = session.spec.kv_bytes_per_token(2)
        for step in range(STEPS):
            wobble = ((seed * 7919 + step * 104_729 + kept) % 1000) / 1000
            yield Measurement(KL_DIVERGENCE, (1 - share) * (0.5 + wobble), request=0, turn=step)
            yield Measurement(TOP1_AGREEMENT, float(wobble < 0.5 + share / 2), request=0, turn=step)
        yield Measurement(KV_DEVICE_BYTES, kept * self.batch_size * per_token, "decode", 0)
        yield Measurement(KV_FULL_BYTES, self.context_tokens * self.batch_size * per_token, "decode", 0)
        for repeat in range(self.repeats):
            yield Measurement(TTFT_S, 1e-4 * (self.batch_size + kept) * (1 + repeat / 100), repeat=repeat, request=0)
