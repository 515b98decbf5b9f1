"""An engine that plans, with the environment `fake`."""

from typing import ClassVar

from kvfrontier.engines import engine
from kvfrontier.engines.base import Engine
from kvfrontier.errors import Unsupported


@engine("toy_elsewhere")
class ToyElsewhere(Engine):
    """Offers steps, in another Python."""

    environment: ClassVar[str] = "fake"
    offers: ClassVar[frozenset[str]] = frozenset({"steps"})
    packages: ClassVar[tuple[str, ...]] = ("fakelib",)

    def load(self, model, device):
        raise Unsupported("a toy")
