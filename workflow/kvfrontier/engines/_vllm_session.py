"""A running vLLM engine in this process: batches through its own scheduler, stamped and counted step by step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm import LLMEngine
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

from kvfrontier.engines._greedy import Readings
from kvfrontier.engines._memory import give_back_heap
from kvfrontier.engines._vllm_blocks import BlockWatch, Step
from kvfrontier.engines._vllm_scheduling import answer, come_at_once
from kvfrontier.engines._vllm_settings import engine_args, load_tokenizer
from kvfrontier.engines._vllm_tier import DiskTier
from kvfrontier.engines.base import Generation, Request, Sequences, Session
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
        give_back_heap()  # what loading freed: more of it in a second engine than in the first, at the same setting

    def open(self, strategy: Strategy) -> Sequences:
        """vLLM decides itself what a step is."""
        raise Unsupported("vLLM answers whole batches; it offers no single steps of one")

    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        """See `Session`: requests that all come at once."""
        return self.serve(strategy, [Request(prompt, output_tokens) for prompt in prompts])

    def serve(self, strategy: Strategy, requests: Sequence[Request], may_find: bool = False) -> Generation:
        """See `Session`. Tokens are stamped when the step that made them is over, whichever requests were in it."""
        self._require_able(strategy, requests)
        may_find = may_find or self._settings.allow_prefix_hits
        if not may_find:
            self.free_unused()
        self._watch.reset()
        answers = answer(self._engine, self._watch, requests, self.device, self._numbers)
        read = sum(len(request.prompt) for request in requests)
        hit_rate = sum(answers.cached) / read
        if not may_find:
            _require_read(hit_rate)
        is_rounding_alone = self._watch.is_exact and not hit_rate and not self._settings.kv_connector
        if is_rounding_alone:
            self._watch.require_rounding_alone()
        steps, first = self._watch.steps, answers.prefill_steps
        held = [len(request.prompt) + request.output_tokens - 1 for request in requests]
        kept = sum(held) / len(held)
        phases = [("prefill", steps[:first], read), ("decode", steps[first:], sum(held))]
        return Generation(
            tokens=answers.tokens,
            token_times_s=answers.times_s,
            memory=[
                reading
                for phase, part, full_tokens in (phases if come_at_once(requests) else [("", steps, None)])
                for reading in self._memory(phase, part, full_tokens, is_rounding_alone)
            ]
            + answers.peaks,
            counted=[
                (KV_PEAK_BLOCKS, "", max(step.blocks for step in steps)),
                (PREEMPTIONS, "", sum(step.preempted for step in steps)),
                (PREFIX_HIT_RATE, "", hit_rate),
                *([] if self._agreement is None else [(KV_TYPE_AGREEMENT, "", self._agreement)]),
            ],
            kept_tokens=[[kept] * self.spec.kv_heads] * self.spec.layers if self._watch.holds_all else [],
            seen_tokens=kept,
            found_tokens=answers.cached,
            queue_s=answers.queue_s,
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
        give_back_heap()
        if self._disk:
            self._disk.remove()

    def _spec_of(self, model: Model) -> ModelSpec:
        """The shape of what was loaded; raises KVFrontierError where the catalog says another."""
        config = self._engine.vllm_config.model_config.hf_text_config
        verify_shape(config, model.spec)
        return replace(model.spec, **shape_of(config), windows=windows_of(config))

    def _require_able(self, strategy: Strategy, requests: Sequence[Request]) -> None:
        """Raise Unsupported for a strategy that acts, or a request that is too long."""
        if strategy.acts:
            raise Unsupported(f"vLLM's cache keeps every token as it is; '{strategy.name}' does not")
        longest = max(len(request.prompt) + request.output_tokens for request in requests)
        if longest > (most := self._engine.vllm_config.model_config.max_model_len):
            raise Unsupported(
                f"prompt and output are {longest} tokens; max_model_len, or the pool of blocks, allows {most}"
            )

    def _memory(self, phase: str, steps: Sequence[Step], full_tokens: int | None, is_rounding_alone: bool) -> Readings:
        """Where they are most in these steps; full_tokens: of all requests when the phase is over, if they are then
        there together."""
        if not steps:
            return []  # of one token there is no decoding
        watch, step = self._watch, max(steps, key=lambda step: step.blocks)
        used = step.blocks * watch.block_bytes
        found = [
            (KV_DEVICE_BYTES, phase, float(used)),
            (KV_RESERVED_BYTES, phase, float(watch.reserved_bytes)),
        ]
        if full_tokens is not None:
            found.append((KV_FULL_BYTES, phase, full_tokens * watch.token_bytes))
        if is_rounding_alone:
            found.append((KV_WASTE_BYTES, phase, used - sum(step.tokens) * watch.token_bytes))
        if self._disk:
            found.append((KV_DISK_BYTES, phase, float(self._disk.bytes)))
        return found


def _require_read(hit_rate: float) -> None:
    """Raise KVFrontierError where prompts were not read but found."""
    if hit_rate > MOST_HITS:
        raise KVFrontierError(
            f"{hit_rate:.1%} of the prompts' tokens were found in a cache: the time to read them is not measured. "
            "Set `allow_prefix_hits: true` where that is wanted"
        )
