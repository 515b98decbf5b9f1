"""Where the time of decode steps goes, for whoever asks: it costs synchronization, so not while a whole is timed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


class StepTimer:
    """Seconds by part. Parts that a link's thread does run beside the step: only the others add up to it."""

    def __init__(self, device: torch.device | None = None):
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._cuda = device if device is not None and device.type == "cuda" else None

    def part(self, name: str) -> AbstractContextManager[None]:
        """Add the time inside the `with` to that part."""
        return self._timed(name)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self._wait()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            self.seconds[name] += time.perf_counter() - start

    def _wait(self) -> None:
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)


class _Untimed(StepTimer):
    def part(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


UNTIMED = _Untimed()
