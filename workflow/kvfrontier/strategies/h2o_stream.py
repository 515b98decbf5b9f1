"""H2O that evicts while it reads: the prompt is never held as a whole."""

from __future__ import annotations

from kvfrontier.strategies import strategy
from kvfrontier.strategies._accumulated import InChunks, RowMean


@strategy("h2o_stream")
class H2OStream(InChunks, RowMean):
    """After each chunk of the prompt keep the recent tokens and those with the largest S of all rows so far.

    Paper: Zhang et al. 2023, arXiv:2306.14048, whose greedy algorithm this is at `chunk_tokens: 1`. Later chunks attend
    to what is kept only, so results depend on the chunk: it is a setting of the strategy, not the engine's. `h2o`
    itself, read in chunks, keeps the whole prompt until its end and does not depend on them; a prompt of one chunk is
    plain `h2o`.
    Early chunks have been scored by more rows: `score_norm: mean_rows` takes that out.
    Phases: prefill (each chunk), decode. Needs: attention_mass, chunks.
    """
