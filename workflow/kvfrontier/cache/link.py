"""Counted copies between the compute device's memory and one beside it: host memory, or a buffer of a file.

Copies are real. On a CPU both memories are RAM, which takes a copy as long as RAM takes. With a rate, a copy lasts as
long as a link of that rate would need for its bytes: an emulation, by sleeping, which a row must say.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit
from threading import Lock
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor

_GRAIN = 32_768  # elements of a copy that torch gives to one thread before it asks for another


def host_empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A tensor in host memory of the type of `like`, pinned where `like` lies on a CUDA device."""
    return torch.empty(shape, dtype=like.dtype, pin_memory=like.is_cuda)


class Transfer:
    """Work of a link's own thread. On CUDA it ran on a stream of its own, and `wait` orders the caller's behind it."""

    def __init__(self, done: Future[Any], device: torch.device):
        self._done, self._device = done, device

    def wait(self) -> None:
        """Return when the work is done; raises what went wrong in it."""
        event = self._done.result()
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


class Link:
    """Copies one after the other, in the order they were asked for, and the bytes of each direction so far.

    fetch: towards the device; store: away from it. `submit` and the asynchronous forms run on one thread of the link's
    own, which torch lets copy while Python goes on; the tensors are the link's until `wait` returns.
    """

    def __init__(self, gigabytes_per_s: float | None = None):
        self.gigabytes_per_s = gigabytes_per_s
        self.fetched_bytes = 0
        self.stored_bytes = 0
        self._lock = Lock()
        self._free_at = 0.0  # when the emulated link has let everything through
        self._worker: ThreadPoolExecutor | None = None
        self._last: Transfer | None = None
        self._streams: dict[torch.device, Any] = {}  # the thread's own, by device

    def fetch(self, source: Tensor, out: Tensor) -> None:
        """Copy `source`, in the slower memory, to `out` of the same shape and type."""
        self.carry(out.nbytes, lambda: _copy(source, out))

    def store(self, source: Tensor, out: Tensor) -> None:
        """Copy `source` to `out`, in the slower memory, of the same shape and type."""
        self.carry(out.nbytes, lambda: _copy(source, out), stored=True)

    def carry(self, size: int, work: Callable[[], None], stored: bool = False) -> None:
        """Let `work` move `size` bytes in a way of its own: as `fetch`, or as `store`."""
        end = self._reserve(size)
        work()
        if end:
            sleep(max(0.0, end - monotonic()))
        with self._lock:
            self.stored_bytes += size * stored
            self.fetched_bytes += size * (not stored)

    def fetch_async(self, source: Tensor, out: Tensor) -> Transfer:
        """`fetch` while the caller goes on."""
        return self.submit(lambda: self.fetch(source, out), out.device)

    def store_async(self, source: Tensor, out: Tensor) -> Transfer:
        """`store` while the caller goes on."""
        return self.submit(lambda: self.store(source, out), source.device)

    def submit(self, work: Callable[[], None], device: torch.device) -> Transfer:
        """Run `work` after all that was submitted before; on CUDA, after what `device` has been given so far."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="link")
        ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        try:
            self._last = Transfer(self._worker.submit(self._run, work, device, ready), device)
        except RuntimeError as error:
            if getrlimit(RLIMIT_DATA)[0] == RLIM_INFINITY:
                raise
            raise MemoryError(f"no memory for the thread of a link: {error}") from error
        return self._last

    def start(self) -> None:
        """Start the thread, and those that its kernels share the work with: OpenMP ends the process where it cannot."""
        elements = _GRAIN * torch.get_num_threads()
        self.submit(lambda: _copy(torch.zeros(elements), torch.empty(elements)), torch.device("cpu")).wait()

    def drain(self) -> None:
        """Wait for all that was submitted."""
        if self._last is not None:
            self._last.wait()

    def _run(self, work: Callable[[], None], device: torch.device, ready: Any) -> Any:
        """The thread's part; the event behind the work, on CUDA."""
        if ready is not None and device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = None if ready is None else self._streams[device]
        with torch.no_grad(), nullcontext() if stream is None else torch.cuda.stream(stream):
            if stream is not None:
                stream.wait_event(ready)
            work()
            return None if stream is None else stream.record_event()

    def _reserve(self, size: int) -> float:
        """When the emulated link has let `size` more bytes through."""
        if self.gigabytes_per_s is None:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, monotonic()) + size / (self.gigabytes_per_s * 1e9)
            return self._free_at

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        """A link of the same rate and totals, with a thread of its own."""
        copy = Link(self.gigabytes_per_s)
        copy.fetched_bytes, copy.stored_bytes = self.fetched_bytes, self.stored_bytes
        return copy


def _copy(source: Tensor, out: Tensor) -> None:
    if source.shape != out.shape or source.dtype != out.dtype:
        raise ValueError(f"a link copies as it is: {source.dtype} {source.shape} to {out.dtype} {out.shape}")
    out.copy_(source)
