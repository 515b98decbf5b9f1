"""What a strategy is: settings, a formula for what it keeps, and what it does to one layer's cache.

A strategy's fields are read when the plan is made, often where torch is not wanted: import torch inside methods.
A strategy holds no state; what belongs to a sequence lives in the layer's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kvfrontier.parameters import settings

if TYPE_CHECKING:
    from kvfrontier.cache.layer import LayerView


@settings
class Strategy:
    """Base of all strategies; subclasses are plugins and add fields."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    """What attention must hand over: `attention_mass` (column sums of the softmax, per query head)."""

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """Tokens held per KV head after a prefill of `prompt_tokens` and `generated_tokens` decode steps (the formula)."""
        return prompt_tokens + generated_tokens

    def after_prefill(self, view: LayerView) -> None:
        """Act on one layer after the attention of a prefill's or an extension's last chunk."""

    def after_decode(self, view: LayerView) -> None:
        """Act on one layer after the attention of a decode step."""
