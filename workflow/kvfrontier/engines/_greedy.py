"""A batch answered greedily, timed step by step: what engines share that decode one token a row at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from kvfrontier.engines._memory import PeakMemory
from kvfrontier.engines.base import Generation, Sequences

Readings = list[tuple[str, str, float]]


def answer(
    open_batch: Callable[[], Sequences],
    prompts: Sequence[Sequence[int]],
    output_tokens: int,
    device: torch.device,
    read_memory: Callable[[str, Sequences, int], Readings],
) -> tuple[Generation, Sequences]:
    """Prefill and produce exactly `output_tokens` tokens a row; the `Generation`, and the batch as it is then.

    read_memory: `(metric, phase, bytes)` after a phase ('prefill', 'decode') of so many decode steps; not timed.
    """
    peak, steps = PeakMemory(device), output_tokens - 1
    peak.reset()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    sequences = open_batch()
    # The copy to the host waits for the device.
    produced = [sequences.prefill(prompts, reserve_tokens=steps).argmax(-1).cpu()]
    times = [time.perf_counter() - start]
    memory = read_memory("prefill", sequences, 0) + peak.readings("prefill")
    peak.reset()
    paused = time.perf_counter() - start - times[0]  # reading memory is not the model's time
    for _ in range(steps):
        produced.append(sequences.decode(produced[-1]).argmax(-1).cpu())
        times.append(time.perf_counter() - start - paused)
    memory += read_memory("decode", sequences, steps) + peak.readings("decode")
    generation = Generation(
        tokens=[list(row) for row in zip(*(step.tolist() for step in produced), strict=True)],
        token_times_s=[list(times) for _ in prompts],
        memory=memory,
        seen_tokens=sum(sequences.seen_tokens) / len(prompts),
    )
    return generation, sequences
