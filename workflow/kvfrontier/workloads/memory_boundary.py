"""`memory_boundary`: the longest prompt that runs within a declared memory limit, found by doubling and bisection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvfrontier.errors import is_out_of_memory
from kvfrontier.metrics import BOUNDARY_FOUND, CONTEXT_FITS, LONGEST_CONTEXT_TOKENS, Measurement
from kvfrontier.parameters import PositiveInt
from kvfrontier.sources.text import TextKind, exact_prompts, needed_data
from kvfrontier.workloads import workload
from kvfrontier.workloads.base import Workload

if TYPE_CHECKING:
    from kvfrontier.engines.base import Generation, Session
    from kvfrontier.strategies.base import Strategy


@workload("memory_boundary")
class MemoryBoundary(Workload):
    """Prompts of growing length until one does not fit `memory_limit_gb` of the engine, then halving what is between.

    Running out of memory is the answer here, not the cell's end; any other error ends it. Contexts may exceed the
    positions that the model was trained for: memory does not depend on what the text means, so no quality is read.
    The memory readings are those of the longest prompt that fits. An engine's `prefill` mode is an axis of its own.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"steps", "text", "memory_limit_gb"})
    exclusive: ClassVar[bool] = True

    batch_size: Annotated[PositiveInt, Field(description="Requests answered together")] = 1
    least_tokens: Annotated[PositiveInt, Field(description="The first prompt length that is tried")] = 512
    most_tokens: Annotated[PositiveInt, Field(description="The longest that is tried: time grows with its square")] = (
        16_384
    )
    resolution: Annotated[
        float, Field(gt=0, lt=1, description="Stop once the longest that fits is known to this share of itself")
    ] = 0.1
    output_tokens: Annotated[int, Field(ge=2, description="Output tokens of each request, forced")] = 4
    text: Annotated[TextKind, Field(description="Prompts: natural documents, or generated (no download)")] = "generated"

    def data(self) -> tuple[str, ...]:
        return needed_data(self.text)

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        session.free_unused()  # what the cells before left behind would count as used
        fits, fails, best = 0, None, None
        while (tokens := self.next_length(fits, fails)) is not None:
            generation = self._attempt(session, strategy, seed, tokens)
            yield Measurement(CONTEXT_FITS, float(generation is not None), f"context={tokens}")
            if generation is None:
                fails = tokens
            else:
                fits, best = tokens, generation
        yield Measurement(LONGEST_CONTEXT_TOKENS, fits)
        yield Measurement(BOUNDARY_FOUND, float(fails is not None))
        if best is not None:
            yield from (Measurement(metric, value, phase) for metric, phase, value in best.memory)

    def next_length(self, fits: int, fails: int | None) -> int | None:
        """The next length to try, given the longest that fits (0: none yet) and the shortest that does not."""
        if fails is None:
            return min(2 * fits, self.most_tokens) if 0 < fits < self.most_tokens else None if fits else self._first()
        if fits == 0 or fails - fits <= max(1, self.resolution * fits):
            return None
        return (fits + fails) // 2

    def _first(self) -> int:
        return min(self.least_tokens, self.most_tokens)

    def _attempt(self, session: Session, strategy: Strategy, seed: int, tokens: int) -> Generation | None:
        """The batch at this length, or None where memory does not suffice."""
        prompts = exact_prompts(session.tokenizer, self.text, self.batch_size, tokens, seed)
        try:
            return session.generate(strategy, prompts, self.output_tokens)
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        session.free_unused()  # here, where the traceback no longer holds the tensors
        return None
