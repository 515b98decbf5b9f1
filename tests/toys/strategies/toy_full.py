"""A strategy without parameters."""

from kvfrontier.strategies import strategy
from kvfrontier.strategies.base import Strategy


@strategy("toy_full")
class ToyFull(Strategy):
    """Keeps everything."""
