"""When requests come and how long they are: drawn, or out of a trace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from kvfrontier.errors import Unsupported
from kvfrontier.plan.catalog import load_data
from kvfrontier.plan.project import Project
from kvfrontier.plan.trace import TracedRequest, read_trace

if TYPE_CHECKING:
    from kvfrontier.workloads.arrivals import Arrivals


def drawn(settings: Arrivals, key: str) -> list[TracedRequest]:
    """A renewal process with gamma-distributed gaps; burstiness is their shape, 1 makes it a Poisson process.

    `vllm bench serve` draws gaps of the same distribution, but then stretches them to the exact rate; here the rate
    stays as it was drawn. Lengths are uniform within `length_spread` of the mean. All rates get the same draws, scaled.
    """
    choose = random.Random(f"arrivals-{key}")
    shape = settings.burstiness
    gaps = [choose.gammavariate(shape, 1 / shape) / settings.rate for _ in range(settings.requests - 1)]
    contexts, outputs = (
        [_length(choose, mean, settings.length_spread) for _ in range(settings.requests)]
        for mean in (settings.mean_context_tokens, settings.mean_output_tokens)
    )
    return list(map(TracedRequest, accumulate(gaps, initial=0.0), contexts, outputs))


def traced(name: str, requests: int, rate: float | None) -> list[TracedRequest]:
    """The first requests of the trace that config/data.yaml calls so, at that rate or their own.

    Raises KeyError for an unknown name, ConfigError for a file that is no trace, Unsupported for another kind of data.
    """
    source = load_data(Project.find())[name]
    if source.trace is None:
        raise Unsupported(f"trace: {name} of config/data.yaml has no `trace`: it is a wheel")
    found = list(read_trace(source.trace)[:requests])
    own = offered_rate(found)
    if rate is None or own is None:
        return found
    return [request._replace(arrival_s=request.arrival_s * own / rate) for request in found]


def offered_rate(requests: Sequence[TracedRequest]) -> float | None:
    """Requests a second from the first to the last; None where all come at once."""
    span = requests[-1].arrival_s - requests[0].arrival_s
    return (len(requests) - 1) / span if span else None


def _length(choose: random.Random, mean: int, spread: float) -> int:
    return choose.randint(max(1, round(mean * (1 - spread))), round(mean * (1 + spread)))
