"""H2O: heavy hitters by accumulated attention, and a recent window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import ArgsKwargs

from kvfrontier.parameters import Count, PositiveInt, Share
from kvfrontier.strategies import strategy
from kvfrontier.strategies.base import Eviction

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.cache.view import LayerView


@strategy("h2o")
class H2O(Eviction):
    """Keep the k_r most recent tokens and, of the older, the k - k_r with the largest accumulated attention S.

    Paper: Zhang et al. 2023, arXiv:2306.14048. S_j sums key j's softmax weight over all rows so far; exact here, from
    the first prompt token on, in O(n) extra memory. Sets are per layer and KV head.
    Two readings of its ratio: `budget` is the total share (paper: 20 % = 10 % heavy + 10 % recent); `heavy_ratio` r
    keeps r n heavy *and* r n recent tokens, as the authors' FlexGen code does (its ring buffer holds one more recent
    and one less heavy token after the first step).
    Differs: positions stay original; ties keep the older token; S is summed within a KV head's group.
    Phases: prefill, decode. Needs: attention_mass.
    """

    needs = frozenset({"attention_mass"})

    heavy_ratio: Annotated[
        float | None,
        Field(gt=0, le=0.5, description="Instead of budget: r n heavy and r n recent tokens"),
    ] = None
    recent_share: Annotated[Share, Field(description="Share of the budget that is the recent window")] = 0.5
    sinks: Annotated[Count, Field(description="First tokens that always stay (inside the budget)")] = 0
    decode_evict: Annotated[
        Literal["every", "off", "interval"], Field(description="Decode steps that evict: all, none, every m-th")
    ] = "every"
    evict_interval: Annotated[PositiveInt, Field(description="m of `decode_evict: interval`")] = 16
    scoring: Annotated[
        Literal["lse", "two_pass", "eager"],
        Field(description="How exact column sums are formed: kernel's lse and a pass, two passes, the matrix"),
    ] = "lse"
    score_norm: Annotated[
        Literal["sum", "mean_rows"], Field(description="S, or S per row that saw the token (removes the age bias)")
    ] = "sum"

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

    def sink_tokens(self) -> int:
        """The sinks."""
        return self.sinks

    def recent_tokens(self, capacity: int) -> int:
        """k_r, at least the newest token, and never the sinks' place."""
        return max(1, min(int(capacity * self.recent_share), capacity - self.sinks))

    def token_budget(self, tokens: int) -> int:
        """k of either reading."""
        if self.heavy_ratio is None:
            return super().token_budget(tokens)
        return 2 * max(1, int(self.heavy_ratio * tokens + 1e-9))

    def last_eviction(self, decoded_tokens: int) -> int:
        """The last of so many decode steps that evicted."""
        steps = {"every": 1, "off": decoded_tokens + 1, "interval": self.evict_interval}[self.decode_evict]
        return decoded_tokens - decoded_tokens % steps

    def observe(self, view: LayerView) -> None:
        """S += the column sums of this call's rows."""
        view.cache.auxiliary("mass")[:, :, : view.cache.slots] += view.group_mass

    def scores(self, view: LayerView) -> Tensor:
        """S, or S / rows that saw the token."""
        mass = view.cache.aux["mass"][:, :, : view.cache.slots]
        if self.score_norm == "sum":
            return mass
        return mass / (view.newest_position() - view.cache.used_positions() + 1)
