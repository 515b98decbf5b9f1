"""A naive float64 Llama whose cache is rounded by a reference after each call: what quantised decoding must equal.

Everything is float64, the package's model too: a difference in the last bit of float32 would flip a code now and then.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from kvfrontier.engines._torch_session import TorchSession
from reference import Entry, NaiveLlama, rotate
from tiny import exact_llama, random_prompts


def half(x: float) -> float:
    """x in float16, by way of float32 as torch converts: rounding twice differs in a tie."""
    return float(np.float16(np.float32(x)))


class CodedLlama(NaiveLlama):
    """`settle(heads)` rounds entries of a layer; they are unrotated in the list, and rotated where they are rounded."""

    def rotated_keys(self, entries: list[Entry]) -> list[list[float]]:
        keys = torch.stack([entry.key for entry in entries])
        return rotate(keys, [entry.position for entry in entries], self.theta).tolist()

    def put_back(self, entries: list[Entry], keys: list[list[float]], values: list[list[float]]) -> None:
        positions = [-entry.position for entry in entries]
        unrotated = rotate(torch.tensor(keys, dtype=torch.float64), positions, self.theta)
        for entry, key, value in zip(entries, unrotated, values, strict=True):
            entry.key, entry.value = key, torch.tensor(value, dtype=torch.float64)


def settle_vectors(
    round_vector: Callable[[list[float]], list[float]],
) -> Callable[[CodedLlama, list[Entry], int], None]:
    """Round each new token's key and value by itself."""

    def settle(llama: CodedLlama, entries: list[Entry], before: int) -> None:
        new = entries[before:]
        keys = [round_vector(key) for key in llama.rotated_keys(new)]
        llama.put_back(new, keys, [round_vector(entry.value.tolist()) for entry in new])

    return settle


def assert_logits_follow(
    strategy, settle: Callable[[CodedLlama, list[Entry], int], None], prompt_tokens: int, steps: int, turn: int = 5,
    head_dim: int = 16, **session,
) -> None:  # fmt: skip
    """Prefill, decode, a second turn and more decoding: logits of the package and of the loop.

    settle(llama, entries, before): rounds a head's entries at the end of a call that began with `before` of them.
    """
    model = exact_llama(head_dim=head_dim)
    prompt, generated, more, last = random_prompts([prompt_tokens, steps, turn, steps], seed=5)
    sequences = TorchSession(model, **session).open(strategy)
    llama = CodedLlama(model)
    for tokens in ([*prompt], *([t] for t in generated), [*more], *([t] for t in last)):
        before = llama.position
        if before == 0:
            found = sequences.prefill([tokens], reserve_tokens=steps)
        else:
            found = sequences.decode(tokens) if len(tokens) == 1 else sequences.extend([tokens])
        for token in tokens:
            expected = llama.step(token)
        torch.testing.assert_close(found[0], expected, atol=1e-8, rtol=1e-8)
        for heads in llama.cache:
            for entries in heads:
                settle(llama, entries, before)
