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
    tells: ClassVar[frozenset[str]] = frozenset()
    """Which notes on the tokens of its prompts it hands over, of those that only a workload can (`cache/notes.py`)."""

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
        if untold := sorted(strategy.requires() & OF_WORKLOAD - self.tells):
            raise Unsupported(
                f"workload {self.name} does not tell the {' and '.join(untold)} of its prompts, "
                f"which '{strategy.name}' wants to know"
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
