"""A workload that needs a data source, a reference and what toy_engine does not offer when it is asked for text."""

from collections.abc import Iterator
from typing import ClassVar

from kvfrontier.metrics import Measurement
from kvfrontier.workloads import workload
from kvfrontier.workloads.base import Workload


@workload("toy_chat")
class ToyChat(Workload):
    """Needs text."""

    needs: ClassVar[frozenset[str]] = frozenset({"steps", "text"})
    references: ClassVar[tuple[str, ...]] = ("toy_full",)

    turns: int = 2

    def data(self) -> tuple[str, ...]:
        return ("toy_text",)

    def run(self, session, strategy, seed) -> Iterator[Measurement]:
        yield from ()
