"""A strategy with a budget and a parameter that is a list."""

from kvfrontier.parameters import Budget
from kvfrontier.strategies import strategy
from kvfrontier.strategies.base import Strategy


@strategy("toy_window")
class ToyWindow(Strategy):
    """Keeps the newest."""

    budget: Budget = 0.5
    layers: tuple[int, ...] = (0,)

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        return int(prompt_tokens * self.budget) + generated_tokens
