"""Chunked H2O whose chunks do not see one another: a failure mode, kept to be measured."""

from __future__ import annotations

from typing import ClassVar

from kvfrontier.strategies import strategy
from kvfrontier.strategies._accumulated import InChunks


@strategy("h2o_chunk_isolated")
class H2OChunkIsolated(InChunks):
    """Each chunk of the prompt attends to itself alone; after each, the largest scores of all chunks so far are kept.

    A prefill that treats chunks as prompts of their own, which changes what the model computes, not only what H2O
    (arXiv:2306.14048) keeps of it. Positions stay true. Extensions (a question, a further turn) and decode steps attend
    to all that is kept.
    Phases: prefill (each chunk), decode. Needs: attention_mass, chunks.
    """

    isolated_chunks: ClassVar[bool] = True
