"""Whether a cache of another type says what `auto` says: some start, claim more room, and write garbage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvfrontier.engines._vllm_session import VLLMSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES

if TYPE_CHECKING:
    from kvfrontier.engines.vllm import VLLM
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model

PROBE = (
    "The capital of France is", "Water boils at a temperature of", "One, two, three, four,",
    "The opposite of hot is", "def add(a, b):\n    return", "Once upon a time there was a little",
)  # fmt: skip
FULL = STRATEGIES.get("full")
PROBE_TOKENS = 16
PROBE_POOL_BYTES = 2**30
"""More than twice what the probe fills: a kernel that takes a cache for one of wider numbers writes past its place."""


def believed(engine: VLLM, model: Model, device: Device, folder: Path) -> float | None:
    """How far greedy tokens agree with those of `kv_cache_dtype: auto`; None of that one. Raises Unsupported for less
    than the engine wants.

    Each token is asked for after auto's own text, by a prefill and one step that reads the cache: two texts that have
    parted once say nothing of each other, and one token that differs is what a good but lossy cache does.
    """
    if engine.kv_cache_dtype == "auto":
        return None
    share = agreement(engine, model, device, folder)
    if share < engine.kv_cache_agreement:
        raise Unsupported(
            f"kv_cache_dtype {engine.kv_cache_dtype} cannot be believed: {share:.0%} of a probe's greedy tokens agree "
            f"with those of auto, kv_cache_agreement is {engine.kv_cache_agreement:.0%}"
        )
    return share


@cache
def agreement(engine: VLLM, model: Model, device: Device, folder: Path) -> float:
    """Share of a probe's tokens that are those of `auto`. Remembered: a session that was refused is asked for again."""
    with _probing(replace(engine, kv_cache_dtype="auto"), model, device, folder) as auto:
        prompts = [auto.tokenizer(text).input_ids for text in PROBE]
        expected = auto.generate(FULL(), prompts, PROBE_TOKENS).tokens
    texts = [prompt + said for prompt, said in zip(prompts, expected, strict=True)]
    begun = [text[: -2 - left] for text in texts for left in range(PROBE_TOKENS - 1)]
    ends = [text[len(text) - 2 - left : len(text) - left] for text in texts for left in range(PROBE_TOKENS - 1)]
    with _probing(engine, model, device, folder) as session:
        told = session.generate(FULL(), begun, 2).tokens
    return sum(map(list.__eq__, told, ends)) / len(ends)


_SMALL = {
    "kv_cache_memory_bytes": PROBE_POOL_BYTES, "num_gpu_blocks_override": None, "max_model_len": 256,
    "kv_connector": None, "enable_prefix_caching": False, "enable_chunked_prefill": True,
}  # fmt: skip


@contextmanager
def _probing(engine: VLLM, model: Model, device: Device, folder: Path) -> Iterator[VLLMSession]:
    session = VLLMSession(replace(engine, **_SMALL), model, device, folder)
    try:
        yield session
    finally:
        session.close()
