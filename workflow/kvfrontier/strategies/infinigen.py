"""InfiniGen: all tokens in host memory, a decode step fetches those that the layer before speculates on."""

from __future__ import annotations

from kvfrontier.strategies import strategy
from kvfrontier.strategies._speculation import Speculation


@strategy("infinigen")
class Infinigen(Speculation):
    """Fetch, for each decode step and KV head, the tokens whose speculated score is within alpha of the largest.

    Paper: Lee et al. 2024, OSDI, arXiv:2406.19707 (authors' code: Apache-2.0; alpha 4 for OPT, 5 for Llama, r 0.2).
    Keys and queries are multiplied by an orthogonal A, the right singular vectors of the prompt's rotated queries, so
    that r d columns (largest sum of |Q A|) tell which keys matter. The device keeps those columns of all keys, host
    memory keeps everything; layers 0 and 1 fetch everything.
    `overlap: none` is the order "speculate, gather, copy, go on"; the authors' code copies beside the layer's MLP
    (`copy`); `layer` gathers beside it, too. None of them changes an output. On a CPU both memories are RAM.
    Differs: A and columns are per KV head, from its group's queries stacked, after RoPE (the authors': heads without
    groups; RoPE for accuracy only); the prompt itself calibrates, by its queries alone, as in the authors' fast code
    (their accuracy code for Llama adds the columns of K A, up to 2 r d: compare r 0.4); a group's score is its largest;
    counts are averaged over the heads of one sequence, not over the batch too, so that a row does not depend on the
    others; the step's own token is attended to beside the budget; budget 1.0 fetches everything, whatever alpha is.
    Prefills and extensions (a question, the next turn) attend to all tokens: what is asked without decoding is answered
    as by a full cache.
    Phases: prefill (no scores), every decode step. Needs: queries_ahead, transfers.
    """
