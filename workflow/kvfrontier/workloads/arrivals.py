"""`arrivals`: requests that come one after the other at some rate, and how many of them are answered in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from kvfrontier.engines.base import Generation, Request
from kvfrontier.metrics import (
    CONTEXT_TOKENS,
    GOODPUT_REQUESTS_PER_S,
    OFFERED_REQUESTS_PER_S,
    OUTPUT_TOKENS,
    OUTPUT_TOKENS_PER_S,
    QUEUE_S,
    REQUEST_LATENCY_S,
    REQUESTS_PER_S,
    TPOT_S,
    TTFT_S,
    WITHIN_LIMITS,
    Measurement,
)
from kvfrontier.parameters import Count, PositiveInt
from kvfrontier.sources.text import TextKind, needed_data, prompts_of
from kvfrontier.workloads import workload
from kvfrontier.workloads._arrival_process import drawn, offered_rate, traced
from kvfrontier.workloads._serving import achieved, require_served, tpot_s
from kvfrontier.workloads.base import Workload, require_positions

if TYPE_CHECKING:
    from kvfrontier.engines.base import Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.plan.trace import TracedRequest
    from kvfrontier.strategies.base import Strategy

RATE, CONTEXT, OUTPUT = 1.0, 256, 32
"""Where nothing is said and there is no trace."""


@workload("arrivals")
class Arrivals(Workload):
    """Requests to a server that stays up: each is submitted when it comes, whatever was answered until then.

    Times count from a request's arrival, so one that the engine takes late is late by its own fault. Every repeat draws
    arrivals and lengths anew (the seed decides) and has other texts; a trace's arrivals and lengths stay. Goodput: only
    requests within both limits count; one with a single output token has no TPOT to be late with.
    """

    exclusive: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"schedule", "text"})

    request_rate: Annotated[
        float | None, Field(gt=0, description="Requests a second, on average; null: 1, or as the trace has it")
    ] = None
    requests: Annotated[PositiveInt, Field(description="Requests of a repeat; of a trace its first so many")] = 32
    burstiness: Annotated[
        float, Field(gt=0, description="Shape of gamma-distributed gaps; 1: Poisson, below: in bursts, above: steady")
    ] = 1.0
    context_tokens: Annotated[
        PositiveInt | None, Field(description="Prompt tokens; null: 256, a trace has its own")
    ] = None
    output_tokens: Annotated[
        PositiveInt | None, Field(description="Output tokens, forced; null: 32, a trace has its own")
    ] = None
    length_spread: Annotated[
        float, Field(ge=0, lt=1, description="Both lengths are uniform within this share of themselves; 0: fixed")
    ] = 0.0
    trace: Annotated[
        str | None, Field(description="A `trace` of config/data.yaml: arrivals and lengths of real requests")
    ] = None
    ttft_limit_s: Annotated[float, Field(gt=0, description="Time to the first token that is in time")] = 2.0
    tpot_limit_s: Annotated[float, Field(gt=0, description="Time per output token that is in time")] = 0.2
    repeats: Annotated[PositiveInt, Field(description="Times that requests come, each time others")] = 3
    warmup_output_tokens: Annotated[Count, Field(description="Output tokens of the warm-up; 0: no warm-up")] = 4
    text: Annotated[TextKind, Field(description="Prompts: natural documents, or generated (no download)")] = "natural"

    @model_validator(mode="after")
    def _check(self) -> Arrivals:
        given = {
            "context_tokens": self.context_tokens is not None,
            "output_tokens": self.output_tokens is not None,
            "length_spread": self.length_spread != 0,
            "burstiness": self.burstiness != 1,
        }
        if self.trace is not None and (own := [name for name, is_given in given.items() if is_given]):
            raise ValueError(f"a trace without {', '.join(own)}: it says when requests come, and how long they are")
        return self

    @property
    def rate(self) -> float:
        """Of drawn arrivals."""
        return self.request_rate or RATE

    @property
    def mean_context_tokens(self) -> int:
        """Of drawn requests."""
        return self.context_tokens or CONTEXT

    @property
    def mean_output_tokens(self) -> int:
        """Of drawn requests."""
        return self.output_tokens or OUTPUT

    def data(self) -> tuple[str, ...]:
        return (*needed_data(self.text), *(() if self.trace is None else (self.trace,)))

    def check(self, spec: ModelSpec) -> None:
        """Raises Unsupported where a request does not fit the model's positions, or the trace is none."""
        if self.trace is None:
            most = 1 + self.length_spread
            context, output = round(self.mean_context_tokens * most), round(self.mean_output_tokens * most)
            require_positions(spec, context_tokens=context, output_tokens=output)
            return
        with suppress(KeyError):  # a name that is unknown is a mistake, which the plan reports
            _require_short(spec, self._requests(""))

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        came = [self._requests(f"{seed}-{repeat}") for repeat in range(self.repeats)]
        every = [request for requests in came for request in requests]
        _require_short(session.spec, every)
        lengths = [request.context_tokens for request in every]
        other, *prompts = prompts_of(session.tokenizer, self.text, [max(lengths), *lengths], seed)
        if self.warmup_output_tokens:
            session.generate(strategy, [other], self.warmup_output_tokens)
        for repeat, requests in enumerate(came):
            asked = [Request(prompts.pop(0), request.output_tokens, request.arrival_s) for request in requests]
            generation = session.serve(strategy, asked)
            require_served(generation, asked)
            yield from self._each(asked, generation, repeat)
            yield from self._together(asked, generation, repeat)
            if rate := offered_rate(requests):
                yield Measurement(OFFERED_REQUESTS_PER_S, rate, repeat=repeat)
            yield from achieved(generation, repeat)

    def _requests(self, key: str) -> list[TracedRequest]:
        if self.trace is None:
            return drawn(self, key)
        return traced(self.trace, self.requests, self.request_rate)

    def _is_in_time(self, times_s: Sequence[float]) -> bool:
        return times_s[0] <= self.ttft_limit_s and (tpot_s(times_s) or 0.0) <= self.tpot_limit_s

    def _each(self, asked: Sequence[Request], generation: Generation, repeat: int) -> Iterator[Measurement]:
        """Values of single requests."""
        for number, (request, times) in enumerate(zip(asked, generation.token_times_s, strict=True)):
            place = {"repeat": repeat, "request": number}
            yield Measurement(TTFT_S, times[0], **place)
            if (tpot := tpot_s(times)) is not None:
                yield Measurement(TPOT_S, tpot, **place)
            yield Measurement(REQUEST_LATENCY_S, times[-1], **place)
            yield Measurement(WITHIN_LIMITS, float(self._is_in_time(times)), **place)
            yield Measurement(CONTEXT_TOKENS, len(request.prompt), **place)
            yield Measurement(OUTPUT_TOKENS, len(times), **place)
        for number, waited in enumerate(generation.queue_s):
            yield Measurement(QUEUE_S, waited, repeat=repeat, request=number)

    def _together(self, asked: Sequence[Request], generation: Generation, repeat: int) -> Iterator[Measurement]:
        """Rates from the first arrival to the last output token, and what the engine counts."""
        stamps = generation.token_times_s
        first = min(request.arrival_s for request in asked)
        last = max(request.arrival_s + times[-1] for request, times in zip(asked, stamps, strict=True))
        rates = {
            REQUESTS_PER_S: len(asked),
            GOODPUT_REQUESTS_PER_S: sum(map(self._is_in_time, stamps)),
            OUTPUT_TOKENS_PER_S: sum(map(len, stamps)),
        }
        yield from (Measurement(metric, count / (last - first), repeat=repeat) for metric, count in rates.items())
        for metric, phase, value in (*generation.memory, *generation.counted):
            yield Measurement(metric, value, phase, repeat)


def _require_short(spec: ModelSpec, requests: Sequence[TracedRequest]) -> None:
    longest = max(requests, key=lambda request: request.context_tokens + request.output_tokens)
    require_positions(spec, context_tokens=longest.context_tokens, output_tokens=longest.output_tokens)
