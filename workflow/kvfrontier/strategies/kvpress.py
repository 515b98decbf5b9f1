"""kvpress: any press of NVIDIA's kvpress by name, run by its own code (engine `kvpress`, an environment of its own)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from kvfrontier.parameters import Budget
from kvfrontier.strategies import strategy
from kvfrontier.strategies._press import Named, parse
from kvfrontier.strategies._press_catalog import presses
from kvfrontier.strategies.base import Strategy


@strategy("kvpress")
class KVPress(Strategy):
    """A press, which acts on a layer after the attention of its prefill; some act while decoding, too.

    `budget` b becomes `compression_ratio` 1 - b, of which kvpress keeps int(n (1 - ratio)) of n tokens. Presses that
    share it out over layers or heads round each part (one token more on average, at most), those that keep whole chunks
    count the last, short one as whole (b chunks more). Presses that take no ratio (ThinKPress, DuoAttentionPress,
    DecodingPress, ComposedPress, ...) want `budget: null` and say themselves what they keep.

    A press that masks instead of dropping keeps all bytes, and its rows say so (`kv_masked_bytes`). Unlike our own
    strategies a press does not act again when a chat goes on after its first reading.
    Phases: prefill; decoding presses at decode steps. Needs: the engine kvpress, in an environment of its own.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kvpress"})
    even_heads: ClassVar[bool] = False
    keeps_at_most: ClassVar[bool] = True

    press: Annotated[
        Named, Field(description="A press of kvpress: name, or mapping with parameters; one inside is given so, too")
    ] = "SnapKVPress"
    budget: Annotated[
        Budget | None, Field(description="1 - compression_ratio, or a token count; null: as its parameters say")
    ] = 0.2

    @model_validator(mode="after")
    def _says_once_how_much_goes(self) -> KVPress:
        press = parse(self.press)
        if self.budget is None:
            return self
        if press.has_ratio:
            raise ValueError("budget instead of compression_ratio, which is 1 - budget (or `budget: null` with it)")
        if not presses().get(press.name, {"takes_ratio": True})["takes_ratio"]:
            raise ValueError(f"budget: null with {press.name}, whose own parameters say what it keeps")
        return self

    def make(self, module: Any, tokens: int) -> Any:
        """The press, from the module kvpress, for a prefill of so many tokens."""
        made, ratio = parse(self.press).make(module), self.ratio(tokens)
        if ratio is not None:
            made.compression_ratio = ratio
        return made

    def ratio(self, tokens: int) -> float | None:
        """The `compression_ratio` for a prefill of so many tokens; None: it is not to be set."""
        if self.budget is None or self.budget == 1.0:
            return None if self.budget is None else 0.0
        if isinstance(self.budget, int):  # the half is for int(tokens * (1 - ratio)), which rounds down
            return max(0.0, 1 - (self.budget + 0.5) / tokens)
        return 1 - self.budget

    def kept_tokens(self, prompt_tokens: int, generated_tokens: int = 0) -> int:
        """At most."""
        if self.budget is None or self.budget == 1.0:
            return prompt_tokens + generated_tokens
        share = self.budget / max(1, prompt_tokens) if isinstance(self.budget, int) else self.budget
        most = int(share * prompt_tokens + 1e-9) + 1 + int(share * self._chunk_length())
        return min(prompt_tokens, most) + generated_tokens

    def _chunk_length(self) -> int:
        press = parse(self.press)
        default = presses().get(press.name, {}).get("chunk_length", 0)
        return press.parameters.get("chunk_length", default) or 0
