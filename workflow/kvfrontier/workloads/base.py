"""What a workload promises: it asks a session for work and yields raw measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from kvfrontier.cache.notes import OF_WORKLOAD
from kvfrontier.errors import Unsupported
from kvfrontier.metrics import Measurement
from kvfrontier.parameters import settings

if TYPE_CHECKING:
    from kvfrontier.engines.base import Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.strategies.base import Strategy


@settings
class Workload(ABC):
    """Settings of a workload; subclasses are plugins and add fields.

    Fields named `batch_size`, `context_tokens` and `output_tokens` become columns of their own in `cells`.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    """What the engine must offer (`Engine.offers`)."""
    exclusive: ClassVar[bool] = False
    """True: timed, so no other cell runs on the device meanwhile."""
    references: ClassVar[tuple[str, ...]] = ()
    """Strategies this workload runs for comparison, whatever the cell's own: their code counts in the fingerprint."""
    packages: ClassVar[tuple[str, ...]] = ()
    gives: ClassVar[frozenset[str]] = frozenset()
    """What a strategy may require of a workload: notes on tokens (`cache/notes.py`), `whole_sequence` (a text is asked
    for with its continuation, at once)."""

    def data(self) -> tuple[str, ...]:
        """Names in `config/data.yaml` of what must be fetched before this workload runs."""
        return ()

    @property
    def task(self) -> str:
        """The `task` column of `cells`: what is asked, where a workload knows several tasks."""
        return self.name

    def check(self, spec: ModelSpec) -> None:
        """Raise Unsupported for what this model cannot be asked; called when the plan is made."""

    def check_strategy(self, strategy: Strategy) -> None:
        """Raise Unsupported for a strategy that this workload cannot be asked under; called when the plan is made."""
        if missing := sorted(strategy.requires() & (OF_WORKLOAD | {"whole_sequence"}) - self.gives):
            raise Unsupported(
                f"workload {self.name} does not give {' and '.join(missing)}, which '{strategy.name}' requires"
            )

    @abstractmethod
    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        """Do the work, yield every raw value. `seed` decides every random choice."""


def require_positions(spec: ModelSpec, **tokens: int) -> None:
    """Raise Unsupported where these token counts together exceed the model's positions (unknown: never)."""
    total = sum(tokens.values())
    if spec.max_positions is not None and total > spec.max_positions:
        said = " + ".join(f"{name} {count}" for name, count in tokens.items())
        raise Unsupported(f"{said} = {total} tokens; {spec.name} has {spec.max_positions} positions")
