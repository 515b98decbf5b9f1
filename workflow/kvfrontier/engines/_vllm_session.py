"""A running vLLM engine in this process: batches through its own scheduler, stamped and counted step by step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm import LLMEngine, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.sampling_params import RequestOutputKind

from kvfrontier.engines._greedy import Readings
from kvfrontier.engines._memory import PeakMemory
from kvfrontier.engines._vllm_blocks import BlockWatch, Step
from kvfrontier.engines._vllm_settings import engine_args, load_tokenizer
from kvfrontier.engines._vllm_tier import DiskTier
from kvfrontier.engines.base import Generation, Sequences, Session
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.metrics import (
    KV_DEVICE_BYTES,
    KV_DISK_BYTES,
    KV_FULL_BYTES,
    KV_PEAK_BLOCKS,
    KV_RESERVED_BYTES,
    KV_TYPE_AGREEMENT,
    KV_WASTE_BYTES,
    PREEMPTIONS,
    PREFIX_HIT_RATE,
)
from kvfrontier.models.config_shape import shape_of, windows_of
from kvfrontier.models.convert import verify_shape

if TYPE_CHECKING:
    from kvfrontier.engines.vllm import VLLM
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model, ModelSpec
    from kvfrontier.strategies.base import Strategy

MOST_HITS = 0.01
"""Share of prompt tokens found in a cache with which a batch still counts as read."""


@dataclass
class _Answers:
    """What came of one batch: output ids and their times, of each request, and prompt tokens found in a cache."""

    tokens: list[list[int]]
    times_s: list[list[float]]
    cached: list[int]
    prefill_steps: int = 0  # until the last request had its first token
    peaks: Readings = field(default_factory=list)


class VLLMSession(Session):
    """One vLLM engine. Another one in this process may only be made once this is closed."""

    def __init__(self, engine: VLLM, model: Model, device: Device, folder: Path, agreement: float | None = None):
        self.device = torch.device(device.kind)
        self.memo: dict[Any, Any] = {}
        self._settings, self._agreement = engine, agreement
        self._disk = DiskTier() if engine.kv_connector == "ExampleConnector" else None
        self._numbers = itertools.count()
        torch.set_num_threads(engine.threads)
        self.tokenizer = load_tokenizer(model, folder)
        with ExitStack() as failing:
            if self._disk:
                failing.callback(self._disk.remove)
            self._engine = LLMEngine.from_engine_args(engine_args(engine, model, device, folder, self._disk))
            failing.pop_all()
        self.spec = self._spec_of(model)
        self._watch = BlockWatch(self._engine.engine_core.engine_core.scheduler, engine.tensor_parallel_size)

    def open(self, strategy: Strategy) -> Sequences:
        """vLLM decides itself what a step is."""
        raise Unsupported("vLLM answers whole batches; it offers no single steps of one")

    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        """See `Session`. Tokens are stamped when the step that made them is over, whichever requests were in it."""
        if strategy.acts:
            raise Unsupported(f"vLLM's cache keeps every token as it is; '{strategy.name}' does not")
        longest, most = max(map(len, prompts)) + output_tokens, self._engine.vllm_config.model_config.max_model_len
        if longest > most:
            raise Unsupported(
                f"prompt and output are {longest} tokens; max_model_len, or the pool of blocks, allows {most}"
            )
        if not self._settings.allow_prefix_hits:
            self.free_unused()
        self._watch.reset()
        answers = self._answer(prompts, output_tokens)
        hit_rate = sum(answers.cached) / sum(map(len, prompts))
        self._require_read(hit_rate)
        is_rounding_alone = self._watch.is_exact and not hit_rate and not self._settings.kv_connector
        if is_rounding_alone:
            self._watch.require_rounding_alone()
        steps, held = self._watch.steps, [len(row) + output_tokens - 1 for row in prompts]
        kept = sum(held) / len(held)
        return Generation(
            tokens=answers.tokens,
            token_times_s=answers.times_s,
            memory=[
                *self._memory("prefill", steps[: answers.prefill_steps], sum(map(len, prompts)), is_rounding_alone),
                *self._memory("decode", steps[answers.prefill_steps :], sum(held), is_rounding_alone),
                *answers.peaks,
            ],
            counted=[
                (KV_PEAK_BLOCKS, "", max(step.blocks for step in steps)),
                (PREEMPTIONS, "", sum(step.preempted for step in steps)),
                (PREFIX_HIT_RATE, "", hit_rate),
                *([] if self._agreement is None else [(KV_TYPE_AGREEMENT, "", self._agreement)]),
            ],
            kept_tokens=[[kept] * self.spec.kv_heads] * self.spec.layers if self._watch.holds_all else [],
            seen_tokens=kept,
        )

    def free_unused(self) -> None:
        """Forget what was cached of older requests, in the pool and on disk."""
        self._engine.reset_prefix_cache()
        if self._disk:
            self._disk.clear()

    def close(self) -> None:
        """End the engine and what it has of torch's distributed state, so that another one may follow."""
        self.memo.clear()
        if self._engine is not None:
            self._engine.engine_core.shutdown()
        self._engine = self._watch = None
        cleanup_dist_env_and_memory()
        if self._disk:
            self._disk.remove()

    def _answer(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> _Answers:
        """Submit all at once and step until the last is done. Reading memory between the phases is not vLLM's time."""
        # Delta: what a step adds; the whole text at each step would cost more than a small model's step.
        params = SamplingParams(
            temperature=0,
            max_tokens=output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        found = _Answers([[] for _ in prompts], [[] for _ in prompts], [0] * len(prompts))
        rows = {f"{next(self._numbers)}": row for row in range(len(prompts))}
        peak, waiting, paused = PeakMemory(self.device), set(range(len(prompts))), 0.0
        peak.reset()
        start = time.perf_counter()
        for name, row in rows.items():
            self._engine.add_request(name, {"type": "token", "prompt_token_ids": list(prompts[row])}, params)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter() - start - paused
            for output in outputs:
                row, new = rows[output.request_id], output.outputs[0].token_ids
                found.tokens[row] += new
                found.times_s[row] += [now] * len(new)
                found.cached[row] = output.num_cached_tokens or 0
                waiting -= {row} if new else set()
            if not waiting and not found.prefill_steps:
                found.prefill_steps = len(self._watch.steps)
                found.peaks += peak.readings("prefill")
                peak.reset()
                paused = time.perf_counter() - start - now
        found.peaks += peak.readings("decode")
        return found

    def _spec_of(self, model: Model) -> ModelSpec:
        """The shape of what was loaded; raises KVFrontierError where the catalog says another."""
        config = self._engine.vllm_config.model_config.hf_text_config
        verify_shape(config, model.spec)
        return replace(model.spec, **shape_of(config), windows=windows_of(config))

    def _require_read(self, hit_rate: float) -> None:
        """Raise KVFrontierError where a batch was not read but found."""
        if hit_rate > MOST_HITS and not self._settings.allow_prefix_hits:
            raise KVFrontierError(
                f"{hit_rate:.1%} of the prompts' tokens were found in a cache: the time to read them is not measured. "
                "Set `allow_prefix_hits: true` where that is wanted"
            )

    def _memory(self, phase: str, steps: Sequence[Step], full_tokens: int, is_rounding_alone: bool) -> Readings:
        """Where they are most in these steps; full_tokens: of all requests when the phase is over."""
        if not steps:
            return []  # of one token there is no decoding
        watch, step = self._watch, max(steps, key=lambda step: step.blocks)
        used = step.blocks * watch.block_bytes
        found = [
            (KV_DEVICE_BYTES, phase, float(used)),
            (KV_RESERVED_BYTES, phase, float(watch.reserved_bytes)),
            (KV_FULL_BYTES, phase, full_tokens * watch.token_bytes),
        ]
        if is_rounding_alone:
            found.append((KV_WASTE_BYTES, phase, used - sum(step.tokens) * watch.token_bytes))
        if self._disk:
            found.append((KV_DISK_BYTES, phase, float(self._disk.bytes)))
        return found
