"""What decode steps fetched from another memory: measured by layer and head, and the proof that the budget held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from kvfrontier.errors import KVFrontierError
from kvfrontier.metrics import (
    ACHIEVED_BUDGET,
    FETCH_DEVICE_BYTES,
    FETCH_REUSE,
    FETCHED_TOKENS,
    Measurement,
)

if TYPE_CHECKING:
    from kvfrontier.cache.fetch_log import FetchLog
    from kvfrontier.strategies.base import Strategy


def fetch_measurements(strategy: Strategy, logs: Sequence[FetchLog], seen: int) -> Iterator[Measurement]:
    """All measurements of decode steps that fetched; the achieved budget is the share that they attended to.

    logs: one a layer. seen: the largest number of tokens that any sequence has seen. Raises KVFrontierError where a
    step of any head chose more than the strategy's formula allows.
    """
    if not any(log.row_steps for log in logs):
        return
    for layer, log in enumerate(logs):
        allowed = strategy.most_attended(seen, layer)
        for head, (chosen, most) in enumerate(zip(log.chosen, log.most, strict=True)):
            if not 0 < most <= allowed:
                raise KVFrontierError(
                    f"{strategy.name} fetched {most} tokens of layer {layer}, head {head} in one step, its formula "
                    f"allows 1 to {allowed}: the measurement would be of something else"
                )
            yield Measurement(FETCHED_TOKENS, chosen / log.row_steps, layer=layer, head=head)
        yield Measurement(FETCH_REUSE, sum(log.reused) / sum(log.chosen), layer=layer)
    yield Measurement(FETCH_DEVICE_BYTES, max(log.device_bytes for log in logs))
    yield Measurement(ACHIEVED_BUDGET, fmean(sum(log.chosen) / sum(log.available) for log in logs))
