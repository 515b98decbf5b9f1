"""H2O as its published tables have it: a mask over the whole sequence that knows the future."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvfrontier.errors import Unsupported
from kvfrontier.parameters import Share
from kvfrontier.strategies import strategy
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from kvfrontier.cache.view import LayerView


@strategy("h2o_oracle_mask")
class H2OOracleMask(Strategy):
    """Every row attends to the heavy tokens of the *whole* sequence and to the recent ones; nothing is evicted.

    What the lm-eval code of H2O (Zhang et al. 2023, arXiv:2306.14048) measures, for comparing with published tables,
    not for deployment: one pass over a text and its continuation. The heavy tokens are those with the largest column
    sums of the unmasked attention over all rows, those of the continuation included, so a prompt is masked by what its
    future attends to; later layers compute from masked ones. Of n tokens, a row sees those of the int(h n) heavy that
    are not younger than itself, itself, and the int(r n) before it (the authors' band).
    All keys and values are held, so bytes and the achieved budget are those of the full cache: this is a measurement of
    quality alone. `h2o` is the policy itself.
    Differs: a heavy set per KV head, of sums over its group (the authors have no grouped heads); no row is let off.
    Phases: one pass over the whole sequence (workloads that give `whole_sequence`). Needs: attention_mass.
    """

    needs = frozenset({"attention_mass", "whole_sequence"})

    heavy_ratio: Annotated[Share, Field(description="h: heavy tokens, as a share of all")] = 0.1
    recent_ratio: Annotated[Share, Field(description="r: recent tokens before a row, as a share of all")] = 0.1

    def after_prefill(self, view: LayerView) -> None:
        """Attend once more, to what the whole sequence's sums leave visible."""
        import torch

        from kvfrontier.cache.windowed import attend_window

        lengths = view.seen_tokens
        if view.phase != "prefill" or view.new_tokens != lengths or len(set(lengths)) > 1:
            raise Unsupported("h2o_oracle_mask masks whole sequences of one length, read at once")
        tokens, cache = lengths[0], view.cache
        heaviest = view.group_mass.sort(dim=-1, descending=True, stable=True).indices
        heavy = torch.zeros(cache.positions.shape, dtype=torch.bool, device=heaviest.device)
        heavy.scatter_(2, heaviest[..., : int(self.heavy_ratio * tokens + 1e-9)], True)
        asked = torch.arange(tokens, device=heavy.device).expand(len(lengths), -1)
        window = int(self.recent_ratio * tokens + 1e-9) + 1
        view.output = attend_window(
            view.queries, *cache.used(), view.scale, asked, cache.used_positions(), window, view.sinks,
            in_order=True, always=heavy,
        )  # fmt: skip

    def after_decode(self, view: LayerView) -> None:
        """There is no step in a whole sequence."""
        raise Unsupported("h2o_oracle_mask masks whole sequences: it has no decode step")
