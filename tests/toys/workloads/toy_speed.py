"""A workload that plans."""

from collections.abc import Iterator
from typing import Annotated

from kvfrontier.errors import Unsupported
from kvfrontier.metrics import Measurement
from kvfrontier.workloads import workload
from kvfrontier.workloads.base import Workload
from pydantic import Field


@workload("toy_speed")
class ToySpeed(Workload):
    """Asks for tokens."""

    context_tokens: Annotated[int, Field(ge=1, description="Prompt tokens")]
    batch_size: Annotated[int, Field(ge=1, description="Requests")] = 1
    output_tokens: Annotated[int, Field(ge=1)] = 8
    repeats: Annotated[int, Field(ge=1)] = 1

    def check(self, spec) -> None:
        total = self.context_tokens + self.output_tokens
        if spec.max_positions and total > spec.max_positions:
            raise Unsupported(f"{total} tokens; {spec.name} has {spec.max_positions} positions")

    def run(self, session, strategy, seed) -> Iterator[Measurement]:
        yield from ()
