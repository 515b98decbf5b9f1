"""A cache of prefixes once more, in the plain: whole blocks, known by all tokens up to their end, and never let go."""

from __future__ import annotations

from collections.abc import Sequence


class PrefixCache:
    """What vLLM finds of a prompt: the last token is always read again, since its answer is wanted."""

    def __init__(self, block: int):
        self.block = block
        self._known: set[tuple[int, ...]] = set()

    def found(self, prompt: Sequence[int]) -> int:
        """Tokens of the prompt that need not be read."""
        tokens = 0
        while tokens + self.block < len(prompt) and tuple(prompt[: tokens + self.block]) in self._known:
            tokens += self.block
        return tokens

    def keep(self, held: Sequence[int]) -> None:
        """Remember a request's tokens that have keys and values: all but the last of its answer."""
        ends = range(self.block, len(held) + 1, self.block)
        self._known.update(tuple(held[:end]) for end in ends)
