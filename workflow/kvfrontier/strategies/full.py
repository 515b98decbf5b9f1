"""The full cache: the reference that every strategy is compared with."""

from __future__ import annotations

from typing import ClassVar

from kvfrontier.strategies import strategy
from kvfrontier.strategies.base import Strategy


@strategy("full")
class Full(Strategy):
    """Keep every token: what the others are compared with.

    Phases: none. Needs: nothing.
    """

    acts: ClassVar[bool] = False
