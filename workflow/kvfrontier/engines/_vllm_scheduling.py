"""Requests through vLLM's own scheduler, each when it arrives, stamped step by step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from kvfrontier.engines._memory import PeakMemory

if TYPE_CHECKING:
    import torch
    from vllm import LLMEngine

    from kvfrontier.engines._greedy import Readings
    from kvfrontier.engines._vllm_blocks import BlockWatch
    from kvfrontier.engines.base import Request


@dataclass
class Answers:
    """Of each request: output ids, their times, prompt tokens found in a cache, and the time until its first step."""

    tokens: list[list[int]]
    times_s: list[list[float]]
    cached: list[int]
    queue_s: list[float] = field(default_factory=list)
    prefill_steps: int = 0  # until the last request had its first token, where all come at once
    peaks: Readings = field(default_factory=list)


def come_at_once(requests: Sequence[Request]) -> bool:
    """Whether they are one batch, which is read and then decoded."""
    return not any(request.arrival_s for request in requests)


def answer(
    engine: LLMEngine, watch: BlockWatch, requests: Sequence[Request], device: torch.device, numbers: Iterator[int]
) -> Answers:
    """Submit each request when it is due and step until the last is done. Times count from when it was due: one that
    comes during a step waits for its end, as it would in a server. numbers: names that the engine has not seen.

    Of a batch, memory is read between its phases, which is not vLLM's time.
    """
    found = Answers([[] for _ in requests], [[] for _ in requests], [0] * len(requests))
    names = [f"{next(numbers)}" for _ in requests]
    rows = {name: row for row, name in enumerate(names)}
    coming = deque(sorted(rows.values(), key=lambda row: requests[row].arrival_s))
    is_batch, unread = come_at_once(requests), set(rows.values())
    peak, paused = PeakMemory(device), 0.0
    peak.reset()
    start = time.perf_counter()
    while coming or engine.has_unfinished_requests():
        now = time.perf_counter() - start - paused
        while coming and requests[coming[0]].arrival_s <= now:
            row = coming.popleft()
            engine.add_request(names[row], _prompt(requests[row]), _params(requests[row]))
        if not engine.has_unfinished_requests():
            time.sleep(requests[coming[0]].arrival_s - now)
            continue
        outputs = engine.step()
        now = time.perf_counter() - start - paused
        for output in outputs:
            row, new = rows[output.request_id], output.outputs[0].token_ids
            found.tokens[row] += new
            found.times_s[row] += [now - requests[row].arrival_s] * len(new)
            found.cached[row] = output.num_cached_tokens or 0
            unread -= {row} if new else set()
        if is_batch and not unread and not found.prefill_steps:
            found.prefill_steps = len(watch.steps)
            found.peaks += peak.readings("prefill")
            peak.reset()
            paused = time.perf_counter() - start - now
    found.peaks += peak.readings("decode" if is_batch else "")
    found.queue_s = [watch.begun_s[name] - start - requests[rows[name]].arrival_s for name in names]
    return found


def _prompt(request: Request) -> dict[str, object]:
    return {"type": "token", "prompt_token_ids": list(request.prompt)}


def _params(request: Request) -> SamplingParams:
    """Greedy, and of the length that is asked for."""
    # Delta: what a step adds; the whole text at each step would cost more than a small model's step.
    return SamplingParams(
        temperature=0,
        max_tokens=request.output_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
