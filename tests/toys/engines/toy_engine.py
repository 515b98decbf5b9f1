"""An engine that plans: it loads nothing."""

from typing import ClassVar

from kvfrontier.engines import engine
from kvfrontier.engines.base import Engine
from kvfrontier.errors import Unsupported


@engine("toy_engine")
class ToyEngine(Engine):
    """Offers steps; refuses toy_window without rotation."""

    offers: ClassVar[frozenset[str]] = frozenset({"steps"})
    packages: ClassVar[tuple[str, ...]] = ("pydantic",)

    prefill: str = "sdpa"

    def check(self, strategy, spec) -> None:
        if strategy.name == "toy_window" and self.prefill == "eager":
            raise Unsupported("eager prefill has no window")

    def load(self, model, device):
        raise Unsupported("a toy")
