"""H2O: heavy hitters by accumulated attention, and a recent window."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import ArgsKwargs

from kvfrontier.parameters import Budget
from kvfrontier.strategies import strategy
from kvfrontier.strategies._accumulated import RowMean


@strategy("h2o")
class H2O(RowMean):
    """Keep the k_r most recent tokens and, of the older, the k - k_r with the largest accumulated attention S.

    Paper: Zhang et al. 2023, arXiv:2306.14048. S_j sums key j's softmax weight over all rows so far; exact here, from
    the first prompt token on, in O(n) extra memory, for every prefill mode and chunk size. Sets are per layer and KV
    head.
    Two readings of its ratio: `budget` is the total share (paper: 20 % = 10 % heavy + 10 % recent); `heavy_ratio` r
    keeps r n heavy *and* r n recent tokens, as the authors' FlexGen code does (its ring buffer holds one more recent
    and one less heavy token after the first step).
    Sums favour old tokens: after a long prompt hardly a generated one becomes heavy (`kept_age_share` shows it).
    `score_norm: mean_rows`, `decay` and `grace` are the known repairs. `score_delay` scores a token only by rows some
    way after it: the delay of KVpop (arXiv:2607.05061) without its trained scorer.
    Differs: positions stay original; ties keep the older token; S is reduced within a KV head's group.
    Phases: prefill, decode. Needs: attention_mass.
    """

    budget: Annotated[
        Budget | None,
        Field(description="Kept share of the tokens in (0, 1], or a token count per KV head; null with `heavy_ratio`"),
    ] = 0.2
    heavy_ratio: Annotated[
        float | None,
        Field(gt=0, le=0.5, description="Instead of budget: r n heavy and r n recent tokens"),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _one_ratio(cls, given: Any) -> Any:
        """`heavy_ratio` alone switches the default budget off."""
        fields = given.kwargs if isinstance(given, ArgsKwargs) else given
        if fields and fields.get("heavy_ratio") is not None and "budget" not in fields:
            fields = {**fields, "budget": None}
            return ArgsKwargs(given.args, fields) if isinstance(given, ArgsKwargs) else fields
        return given

    @model_validator(mode="after")
    def _check(self) -> H2O:
        if (self.budget is None) == (self.heavy_ratio is None):
            raise ValueError("h2o takes exactly one of budget (total share) and heavy_ratio (r n heavy, r n recent)")
        if self.heavy_ratio is not None and (self.recent_share != 0.5 or self.sinks):
            raise ValueError("heavy_ratio means as many recent as heavy tokens: leave recent_share and sinks alone")
        return self

    def token_budget(self, tokens: int) -> int:
        """k of either reading."""
        if self.heavy_ratio is None:
            return super().token_budget(tokens)
        return 2 * max(1, int(self.heavy_ratio * tokens + 1e-9))
