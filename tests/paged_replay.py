"""vLLM's scheduler and block allocator once more, in the plain: which blocks are in use in each step of one batch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil


@dataclass
class Request:
    """tokens: read and said so far, all of which a request that lost its blocks reads again."""

    prompt: int
    said: int = 0
    held: int = 0  # with keys and values in blocks

    @property
    def tokens(self) -> int:
        return self.prompt + self.said


@dataclass
class Replay:
    """All requests come at once, first come, first served. `pool`: blocks that can be given out."""

    pool: int
    block: int
    step_tokens: int
    running_at_once: int
    chunked: bool = True

    def steps(self, prompts: list[int], output_tokens: int) -> list[tuple[int, tuple[int, ...], int]]:
        """Of each step: blocks in use, tokens that each running request then holds, requests that lost their blocks."""
        waiting = deque(Request(prompt) for prompt in prompts)
        running: list[Request] = []
        found = []
        while waiting or running:
            planned, lost = self._decide(waiting, running)
            assert planned, "nobody can go on"
            for request, tokens in planned:
                request.held += tokens
            found.append((self._used(running), tuple(request.held for request in running), lost))
            for request, _ in planned:
                request.said += request.held == request.tokens  # a prompt in the middle says nothing yet
            running[:] = [request for request in running if request.said < output_tokens]
        return found

    def _decide(self, waiting: deque[Request], running: list[Request]) -> tuple[list[tuple[Request, int]], int]:
        """Who computes how many tokens. Those that run go first; the last of them gives way where blocks are short."""
        planned: list[tuple[Request, int]] = []
        left, lost, place = self.step_tokens, 0, 0
        while place < len(running) and left:
            request = running[place]
            tokens = min(request.tokens - request.held, left)
            while not self._fits(request, tokens, running, planned):
                victim = running.pop()
                victim.held = 0
                waiting.appendleft(victim)
                lost += 1
                if victim is request:
                    return planned, lost
            planned.append((request, tokens))
            left -= tokens
            place += 1
        while waiting and left and not lost and len(running) < self.running_at_once:
            request = waiting[0]
            free = self.pool - self._used(running, planned)
            tokens = min(request.tokens, left)
            if ceil(request.tokens / self.block) > free or (tokens < request.tokens and not self.chunked):
                break
            running.append(waiting.popleft())
            planned.append((request, tokens))
            left -= tokens
        return planned, lost

    def _fits(self, request: Request, tokens: int, running: list[Request], planned: list[tuple[Request, int]]) -> bool:
        more = ceil((request.held + tokens) / self.block) - ceil(request.held / self.block)
        return more <= self.pool - self._used(running, planned)

    def _used(self, running: list[Request], planned: list[tuple[Request, int]] | tuple[()] = ()) -> int:
        coming = {id(request): tokens for request, tokens in planned}
        return sum(ceil((request.held + coming.get(id(request), 0)) / self.block) for request in running)
