"""`speed`: how fast a batch is answered and what memory that takes, at exact context and output lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvfrontier.errors import KVFrontierError
from kvfrontier.metrics import (
    ACHIEVED_BUDGET,
    CONTEXT_TOKENS,
    DECODE_S,
    DECODE_TOKENS_PER_S,
    E2E_LATENCY_S,
    KEPT_TOKENS,
    OUTPUT_TOKENS,
    OUTPUT_TOKENS_PER_S,
    OUTPUT_TOKENS_PER_S_PER_GB,
    PREFILL_S,
    TPOT_S,
    TTFT_S,
    Measurement,
)
from kvfrontier.parameters import Count, PositiveInt
from kvfrontier.sources.text import TextKind, exact_prompts, needed_data
from kvfrontier.workloads import workload
from kvfrontier.workloads._account import require_kept
from kvfrontier.workloads._fetched import fetch_measurements
from kvfrontier.workloads.base import Workload, require_positions

if TYPE_CHECKING:
    from kvfrontier.engines.base import Generation, Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.strategies.base import Strategy

FEWEST_REPEATS = 3  # below it an interval says nothing, so no cell stops earlier
T_QUANTILE_975 = {
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
}  # by degrees of freedom


@workload("speed")
class Speed(Workload):
    """Answer one batch several times; every strategy gets the same prompts.

    `repeats` is the most: after 3, a cell stops once the 95 % t-interval of its end-to-end latency is narrower than
    +-`stop_within` of the mean. Before the first repeat other prompts of the same shape warm the engine up.
    Memory readings are the engine's own, of the whole batch; `output_tokens_per_s_per_gb` divides by the KV bytes of
    all tiers at the phase where they are most (GB = 10^9 bytes).
    """

    exclusive: ClassVar[bool] = True

    batch_size: Annotated[PositiveInt, Field(description="Requests answered together")] = 1
    context_tokens: Annotated[PositiveInt, Field(description="Prompt tokens of each request, exact")] = 512
    output_tokens: Annotated[int, Field(ge=2, description="Output tokens of each request, forced")] = 32
    repeats: Annotated[PositiveInt, Field(description="Timed repeats at most")] = 3
    stop_within: Annotated[
        float, Field(ge=0, lt=1, description="Relative half-width that is exact enough; 0: never")
    ] = 0.1
    warmup_output_tokens: Annotated[Count, Field(description="Output tokens of the warm-up; 0: no warm-up")] = 4
    text: Annotated[TextKind, Field(description="Prompts: natural documents, or generated (no download)")] = "natural"
    beyond_positions: Annotated[
        bool,
        Field(description="Allow more than the model's positions: right for times and bytes, not for text"),
    ] = False

    def data(self) -> tuple[str, ...]:
        return needed_data(self.text)

    def check(self, spec: ModelSpec) -> None:
        """Raises Unsupported where prompt and output do not fit the model's positions."""
        if not self.beyond_positions:
            require_positions(spec, context_tokens=self.context_tokens, output_tokens=self.output_tokens)

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        prompts, others = self._prompts(session, seed)
        if self.warmup_output_tokens:
            session.generate(strategy, others, min(self.warmup_output_tokens, self.output_tokens))
        latencies: list[float] = []
        for repeat in range(self.repeats):
            generation = session.generate(strategy, prompts, self.output_tokens)
            self._require_length(generation)
            yield from _times(generation, repeat)
            latencies.append(_end(generation))
            if narrow_enough(latencies, self.stop_within):
                break
        yield from (Measurement(CONTEXT_TOKENS, len(prompt), request=row) for row, prompt in enumerate(prompts))
        yield from self._kept(session, strategy, generation)

    def _prompts(self, session: Session, seed: int) -> tuple[list[list[int]], list[list[int]]]:
        """The measured prompts and as many others. An engine without a tokenizer (simulator) gets plain ids."""
        count = 2 * self.batch_size
        if session.tokenizer is None:
            prompts = [[row] * self.context_tokens for row in range(count)]
        else:
            prompts = exact_prompts(session.tokenizer, self.text, count, self.context_tokens, seed)
        return prompts[: self.batch_size], prompts[self.batch_size :]

    def _require_length(self, generation: Generation) -> None:
        lengths = {len(tokens) for tokens in generation.tokens}
        if lengths != {self.output_tokens}:
            raise KVFrontierError(
                f"the engine produced {sorted(lengths)} output tokens, {self.output_tokens} were asked for"
            )

    def _kept(self, session: Session, strategy: Strategy, generation: Generation) -> Iterator[Measurement]:
        """What the cache held at the end, per layer and head; engines that cannot tell report nothing."""
        if not generation.kept_tokens:
            return
        if acted_on := session.spec.open_only(generation.kept_tokens):
            generated = round(generation.seen_tokens) - self.context_tokens
            mean = fmean(map(fmean, acted_on))
            require_kept(strategy, mean, self.context_tokens, generated, "the batch")
        for layer, heads in enumerate(generation.kept_tokens):
            yield from (Measurement(KEPT_TOKENS, count, layer=layer, head=head) for head, count in enumerate(heads))
        if generation.fetched:
            yield from fetch_measurements(strategy, generation.fetched, round(generation.seen_tokens))
        else:
            yield Measurement(ACHIEVED_BUDGET, fmean(map(fmean, generation.kept_tokens)) / generation.seen_tokens)


def _end(generation: Generation) -> float:
    return max(times[-1] for times in generation.token_times_s)


def _times(generation: Generation, repeat: int) -> Iterator[Measurement]:
    """All times and rates of one repeat. A rate is tokens / time of the batch, never a mean of rates."""
    times = generation.token_times_s
    for request, (tokens, stamps) in enumerate(zip(generation.tokens, times, strict=True)):
        yield Measurement(TTFT_S, stamps[0], repeat=repeat, request=request)
        yield Measurement(TPOT_S, (stamps[-1] - stamps[0]) / (len(stamps) - 1), repeat=repeat, request=request)
        yield Measurement(OUTPUT_TOKENS, len(tokens), repeat=repeat, request=request)
    produced = sum(len(tokens) for tokens in generation.tokens)
    end = _end(generation)
    decode = end - min(stamps[0] for stamps in times)
    rate = produced / end
    yield Measurement(E2E_LATENCY_S, end, repeat=repeat)
    yield Measurement(PREFILL_S, max(stamps[0] for stamps in times), repeat=repeat)
    yield Measurement(DECODE_S, decode, repeat=repeat)
    yield Measurement(OUTPUT_TOKENS_PER_S, rate, repeat=repeat)
    yield Measurement(DECODE_TOKENS_PER_S, (produced - len(times)) / decode, repeat=repeat)
    for metric, phase, value in (*generation.memory, *generation.counted):
        yield Measurement(metric, value, phase, repeat)
    if kv_bytes := peak_kv_bytes(generation.memory):
        yield Measurement(OUTPUT_TOKENS_PER_S_PER_GB, rate / (kv_bytes / 1e9), repeat=repeat)


def peak_kv_bytes(memory: Sequence[tuple[str, str, float]]) -> float:
    """Keys and values of all tiers at the phase where they are most; 0 where the engine reads none."""
    phases: dict[str, float] = {}
    for metric, phase, value in memory:
        if metric in ("kv_device_bytes", "kv_host_bytes", "kv_disk_bytes"):
            phases[phase] = phases.get(phase, 0.0) + value
    return max(phases.values(), default=0.0)


def narrow_enough(values: Sequence[float], within: float) -> bool:
    """True once the mean's 95 % t-interval is within +-`within` of it; needs FEWEST_REPEATS values."""
    if not within or len(values) < FEWEST_REPEATS:
        return False
    freedom = len(values) - 1
    half_width = T_QUANTILE_975.get(freedom, 2.262) * stdev(values) / len(values) ** 0.5
    return half_width < within * fmean(values)
