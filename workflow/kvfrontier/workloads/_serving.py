"""What workloads share that let an engine schedule: checks of what it returned, and values of one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from kvfrontier.errors import KVFrontierError
from kvfrontier.metrics import ACHIEVED_BUDGET, Measurement

if TYPE_CHECKING:
    from kvfrontier.engines.base import Generation, Request


def require_served(generation: Generation, requests: Sequence[Request]) -> None:
    """Raise KVFrontierError unless each request has as many output tokens as were asked for, none before it came."""
    for number, (request, said, times) in enumerate(
        zip(requests, generation.tokens, generation.token_times_s, strict=True)
    ):
        if len(said) != request.output_tokens or len(times) != request.output_tokens:
            raise KVFrontierError(
                f"the engine produced {len(said)} output tokens for request {number}, {request.output_tokens} were "
                "asked for"
            )
        if times[0] < 0:
            raise KVFrontierError(f"the engine answered request {number} {-times[0]:.3f} s before it came")


def tpot_s(times_s: Sequence[float]) -> float | None:
    """Mean time per output token after the first; None of a single token."""
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None


def achieved(generation: Generation, repeat: int | None = None) -> Iterator[Measurement]:
    """Kept of all tokens that were read, of engines that can tell."""
    if generation.kept_tokens:
        yield Measurement(
            ACHIEVED_BUDGET, fmean(map(fmean, generation.kept_tokens)) / generation.seen_tokens, repeat=repeat
        )
