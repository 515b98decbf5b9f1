"""A session that serves one request after the other on a clock of its own: for tests of workloads that schedule."""

from __future__ import annotations

from kvfrontier.engines.base import Generation, Request, Session
from kvfrontier.plan.model import ModelSpec
from prefix_cache import PrefixCache
from toy_tokenizer import toy_tokenizer

READ_S, STEP_S = 0.001, 0.01
"""Of a prompt's token that is not found, and of an output token."""


class OneServer(Session):
    """block: of its cache of prefixes; None: it has none. An answer depends on the prompt alone."""

    def __init__(self, block: int | None = None, tokenizer=None, step_s: float = STEP_S):
        self.spec, self.memo = ModelSpec("served", max_positions=4096), {}
        self.tokenizer = tokenizer or toy_tokenizer()
        self.cache = None if block is None else PrefixCache(block)
        self.step_s = step_s
        self.served: list[tuple[list[Request], bool]] = []
        self.done: list[str] = []

    def open(self, strategy):
        raise AssertionError("an engine that schedules need not offer single steps")

    def generate(self, strategy, prompts, output_tokens):
        self.done.append("warm-up")
        return self._answers([Request(prompt, output_tokens) for prompt in prompts])

    def serve(self, strategy, requests, may_find=False):
        self.done.append("serve")
        self.served.append((list(requests), may_find))
        return self._answers(requests)

    def free_unused(self):
        self.done.append("free")
        if self.cache:
            self.cache = PrefixCache(self.cache.block)

    def close(self):
        pass

    def _answers(self, requests):
        tokens, times, found, queues, free_s = [], [], [], [], 0.0
        for request in requests:
            begun = max(free_s, request.arrival_s)
            hit = self.cache.found(request.prompt) if self.cache else 0
            first = begun + READ_S * (len(request.prompt) - hit)
            stamps = [first + self.step_s * step for step in range(request.output_tokens)]
            said = [(sum(request.prompt) * 31 + step) % 250 for step in range(request.output_tokens)]
            if self.cache:
                self.cache.keep([*request.prompt, *said[:-1]])
            free_s = stamps[-1]
            tokens.append(said)
            times.append([stamp - request.arrival_s for stamp in stamps])
            found.append(hit)
            queues.append(begun - request.arrival_s)
        held = sum(len(request.prompt) for request in requests)
        hit_rate = sum(found) / held
        return Generation(
            tokens=tokens,
            token_times_s=times,
            memory=[("kv_device_bytes", "prefill", 1e3 * held), ("kv_waste_bytes", "prefill", 5.0)][
                : 1 + (not hit_rate)
            ],
            counted=[("kv_peak_blocks", "", held), ("preemptions", "", 1), ("prefix_hit_rate", "", hit_rate)],
            kept_tokens=[[held] * 2] * 3,
            seen_tokens=held,
            found_tokens=found,
            queue_s=queues,
        )
