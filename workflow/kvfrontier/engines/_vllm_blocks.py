"""vLLM's allocator, watched: which blocks are in use after each of its scheduling decisions, to the block."""

from __future__ import annotations

import time
from math import ceil
from typing import Any, NamedTuple

from kvfrontier.errors import KVFrontierError


class Step(NamedTuple):
    """blocks: in use while the step runs. tokens: that each running request holds when it is done."""

    blocks: int
    tokens: tuple[int, ...]
    preempted: int


class BlockWatch:
    """Steps of one scheduler since the last `reset`; begun_s: when each request was first in one, host clock.

    It looks when a step's blocks are taken and none is given back yet: vLLM's own gauge is read after a finished
    request's blocks are free again, so it misses the peak of a batch that ends together.
    """

    def __init__(self, scheduler: Any, ranks: int = 1):
        self.steps: list[Step] = []
        self.begun_s: dict[str, float] = {}
        self._scheduler, self._schedule = scheduler, scheduler.schedule
        config = scheduler.kv_cache_config
        groups = config.kv_cache_groups
        self.pool_blocks: int = config.num_blocks
        # A block belongs to one group of layers; groups are padded to one size, and every rank has its part.
        pages = (len(group.layer_names) * group.kv_cache_spec.page_size_bytes for group in groups)
        self.block_bytes: int = max(pages) * ranks
        self.block_tokens: int = groups[0].kv_cache_spec.block_size
        spec = groups[0].kv_cache_spec
        self.holds_all = len(groups) == 1 and not getattr(spec, "sliding_window", None)
        # Asynchronous scheduling counts tokens ahead of their step, and gives blocks back after the next decision.
        self.is_exact = self.holds_all and not scheduler.scheduler_config.async_scheduling
        scheduler.schedule = self._watched  # of this object alone

    def reset(self) -> None:
        """Start anew."""
        self.steps.clear()
        self.begun_s.clear()

    @property
    def reserved_bytes(self) -> int:
        """Of the pool."""
        return self.pool_blocks * self.block_bytes

    @property
    def token_bytes(self) -> float:
        """Of one token's keys and values in all layers."""
        return self.block_bytes / self.block_tokens

    def require_rounding_alone(self) -> None:
        """Raise KVFrontierError unless each running request has its tokens' blocks, rounded up, and nobody has others.

        True of layers that hold all tokens, while no request shares a block.
        """
        for number, step in enumerate(self.steps):
            expected = sum(ceil(tokens / self.block_tokens) for tokens in step.tokens)
            if step.blocks != expected:
                raise KVFrontierError(
                    f"in step {number} vLLM has {step.blocks} blocks in use; requests with {list(step.tokens)} tokens "
                    f"need {expected} of {self.block_tokens} tokens"
                )

    def _watched(self, *args: Any, **kwargs: Any) -> Any:
        now = time.perf_counter()
        planned = self._schedule(*args, **kwargs)
        for request in planned.scheduled_new_reqs:
            self.begun_s.setdefault(request.req_id.partition("-")[0], now)  # vLLM adds letters of its own
        pool = self._scheduler.kv_cache_manager.block_pool
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one is a placeholder
        tokens = tuple(request.num_computed_tokens for request in self._scheduler.running)
        self.steps.append(Step(used, tokens, len(planned.preempted_req_ids or ())))
        return planned
