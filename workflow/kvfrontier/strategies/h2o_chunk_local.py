"""Chunked H2O that forgets its scores at each chunk: a failure mode, kept to be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfrontier.strategies import strategy
from kvfrontier.strategies._accumulated import InChunks

if TYPE_CHECKING:
    from kvfrontier.cache.view import LayerView


@strategy("h2o_chunk_local")
class H2OChunkLocal(InChunks):
    """As `h2o_stream`, but a chunk's eviction goes by the attention of that chunk's rows alone.

    What happens to H2O (arXiv:2306.14048) when a chunked prefill shows it one chunk's scores at a time. Decode steps
    add to the last chunk's scores; an extension starts anew.
    Phases: prefill (each chunk), decode. Needs: attention_mass, chunks.
    """

    def carried(self, view: LayerView) -> list[float]:
        """Nothing into a chunk, unless a row has no tokens in it."""
        if view.phase == "decode":
            return super().carried(view)
        return [0.0 if new else 1.0 for new in view.new_tokens]
