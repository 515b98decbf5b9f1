"""PyramidKV: SnapKV with budgets that fall with depth."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvfrontier.parameters import PositiveInt
from kvfrontier.strategies import strategy
from kvfrontier.strategies._apportion import apportion
from kvfrontier.strategies._window import WindowEviction

if TYPE_CHECKING:
    from collections.abc import Sequence


@strategy("pyramid_kv")
class PyramidKV(WindowEviction):
    """SnapKV's choice, but lower layers choose more tokens and upper layers fewer; k is the mean over layers.

    Paper: Cai et al. 2024, arXiv:2406.02069 (beta 20, w 8, kernel 7, max pooling). With c = k - w chosen tokens on
    average, the last layer chooses c // beta, the first 2 c less that many, those between on a line. Where the first
    would choose more than the n - w there are, it takes those and the last the rest.
    Differs: the line's fractions are handed out by the largest remainder, so that the mean is k exactly (the authors'
    integer step loses up to a token a layer); as SnapKV otherwise.
    Phases: prefill; generated tokens are not evicted. Needs: the last w queries.
    """

    window_tokens: Annotated[PositiveInt, Field(description="w: last tokens, which stay and whose queries score")] = 8
    beta: Annotated[PositiveInt, Field(description="The last layer chooses (k - w) // beta; 1: all layers alike")] = 20

    def layer_budgets(self, tokens: int, layers: int) -> Sequence[int]:
        """A falling line whose mean is k."""
        k = self.token_budget(tokens)
        if k >= tokens or layers == 1:
            return [k] * layers
        window = self.recent_tokens(k)
        chosen = k - window
        first = min(2 * chosen - chosen // self.beta, tokens - window)
        last = 2 * chosen - first
        line = [first - Fraction(layer * (first - last), layers - 1) for layer in range(layers)]
        return [window + count for count in apportion(line, chosen * layers)]
