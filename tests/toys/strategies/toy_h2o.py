"""A strategy with a budget, a count and a choice; built on a private module beside it."""

from typing import Annotated, Literal

from kvfrontier.parameters import Budget
from kvfrontier.strategies import strategy
from kvfrontier.strategies._toy_scores import keep
from kvfrontier.strategies.base import Strategy
from pydantic import Field


@strategy("toy_h2o")
class ToyH2O(Strategy):
    """Keeps a share."""

    budget: Annotated[Budget, Field(description="Kept share")] = 0.5
    recent_tokens: Annotated[int, Field(ge=1, description="Newest tokens")] = 4
    decode_evict: Annotated[Literal["every", "off"], Field(description="When to evict")] = "every"
    is_exact: bool = True

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        return keep(prompt_tokens + generated_tokens, self.budget, self.recent_tokens)
