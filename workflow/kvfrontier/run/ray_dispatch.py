"""Engine workers as Ray actors, on a private Ray of this driver or on a running cluster. Only this file imports ray.

`ray` is imported when a pool is opened: a shard with nothing to measure never pays for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvfrontier.errors import Unavailable
from kvfrontier.plan.project import Project
from kvfrontier.run import guard as guarding
from kvfrontier.run.machine import OutOfMemoryKills
from kvfrontier.run.placement import Placement
from kvfrontier.run.schedule import Died
from kvfrontier.run.watch import SIGNALS
from kvfrontier.run.worker import EngineWorker, Report, Task
from kvfrontier.store.lock import Busy, acquire

logger = logging.getLogger(__name__)

START_TRIES = 3
OBJECT_STORE_BYTES = 80 * 2**20  # rows go to disk, not through Ray; its default is 30 % of the machine's memory
EXIT_PATIENCE_S = 5.0
LOCK = "driver.lock"


@dataclass
class RayPool:
    """See `schedule.Pool`."""

    ray: Any
    placement: Placement
    project: Project
    campaign_dir: Path
    _actors: dict[int, Any] = field(default_factory=dict)
    _pids: dict[int, Any] = field(default_factory=dict)  # worker -> reference to its process id
    _calls: dict[Any, int] = field(default_factory=dict)
    _kernel: OutOfMemoryKills = field(default_factory=OutOfMemoryKills)

    def start(self, worker: int) -> None:
        self.stop(worker)
        actor_class = self.ray.remote(EngineWorker).options(
            num_cpus=self.placement.threads, num_gpus=self.placement.gpus, max_restarts=0, max_task_retries=0
        )
        self._actors[worker] = actor_class.remote(self.project, self.campaign_dir)
        self._pids[worker] = self._actors[worker].pid.remote()

    def stop(self, worker: int) -> None:
        actor = self._actors.pop(worker, None)
        if actor is None:
            return
        for call in [call for call, owner in self._calls.items() if owner == worker]:
            del self._calls[call]
        self.ray.kill(actor, no_restart=True)
        self._see_it_gone(self._pids.pop(worker))

    def submit(self, worker: int, task: Task, concurrent_cells: int) -> None:
        self._calls[self._actors[worker].run.remote(task, concurrent_cells)] = worker

    def wait(self, timeout_s: float) -> list[tuple[int, Report | Died]]:
        with _own_signals():
            ready, _ = self.ray.wait(list(self._calls), num_returns=1, timeout=timeout_s)
        if not ready and not any(node["Alive"] for node in self.ray.nodes()):
            raise Unavailable("Ray's node process died. What was measured is kept; run again to go on.")
        return [(self._calls.pop(call), self._result(call)) for call in ready]

    def _result(self, call: Any) -> Report | Died:
        try:
            with _own_signals():
                return self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            logger.info("%s", error)
            text = " ".join(str(error).split())
            text = text.rpartition("The actor is dead because ")[2].partition(". Some common")[0]
            is_oom = "OutOfMemory" in type(error).__name__ or "memory pressure" in text or self._kernel.has_killed()
            return Died(text, is_oom)

    def _see_it_gone(self, pid_call: Any) -> None:
        """A worker stuck in native code may outlive `ray.kill`; on our own machine make sure, and free its memory."""
        if self.placement.address:
            return
        try:
            pid = self.ray.get(pid_call, timeout=0.1)
        except (self.ray.exceptions.GetTimeoutError, self.ray.exceptions.RayError):
            return  # it never came up, or is gone
        deadline_s = time.monotonic() + EXIT_PATIENCE_S
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            while time.monotonic() < deadline_s:
                os.kill(pid, 0)
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """What a signal handler raises inside Ray's native code comes out of it as a SystemError: raise what it was."""
    try:
        yield
    except SystemError as error:
        raise error.__cause__ or error from None


@contextlib.contextmanager
def ray_pool(placement: Placement, project: Project, campaign_dir: Path) -> Iterator[RayPool]:
    """Start Ray (or join the cluster at `placement.address`), and leave no process and no file of it behind."""
    folder, lock = _temporary_folder()
    _set_environment(placement)
    guard = None if placement.address else _start_guard(folder)
    import ray

    try:
        _connect(ray, placement, folder)
        for number in SIGNALS:  # Ray has put handlers of its own in place, which print a stack and then call ours
            signal.signal(number, signal.getsignal(number))
        yield RayPool(ray, placement, project, campaign_dir)
    finally:
        ray.shutdown()
        if guard is not None:
            guard.communicate()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _start_guard(folder: Path) -> subprocess.Popen[bytes]:
    """See `guard`. Ends when its standard input, which only we hold, is closed."""
    command = [sys.executable, "-m", guarding.__name__, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _set_environment(placement: Placement) -> None:
    """What Ray and its workers read from the environment; must stand before ray is imported."""
    os.environ.update(
        OMP_NUM_THREADS=str(placement.threads),  # otherwise Ray picks one
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    )
    if not placement.address:
        os.environ.pop("RAY_ADDRESS", None)  # an inherited one would make us join a foreign cluster
        # A token of our own: other users of the machine cannot reach this Ray, and no file in the home folder matters.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _connect(ray: Any, placement: Placement, folder: Path) -> None:
    if placement.address:
        environment = {"env_vars": {"OMP_NUM_THREADS": str(placement.threads)}}
        try:
            ray.init(placement.address, runtime_env=environment, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, ray.exceptions.RayError, ValueError) as error:
            raise Unavailable(f"no Ray cluster answers at {placement.address}: {error}") from error
        return
    for attempt in range(1, START_TRIES + 1):
        start = _Start(ray.exceptions.RayError)
        with start:
            ray.init(
                "local",
                num_cpus=placement.workers * placement.threads,
                num_gpus=round(placement.workers * placement.gpus),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.WARNING,
                _temp_dir=str(folder),
            )
            return
        # Ray gives its node process a fixed 30 s, too little on a machine that is busy.
        logger.warning("Ray did not start (try %d of %d): %s", attempt, START_TRIES, start.error)
        ray.shutdown()
    reason = str(start.error).strip().partition("\n")[0]
    raise Unavailable(f"Ray did not start in {START_TRIES} tries: {reason}") from start.error


class _Start:
    """Keeps what Ray raises when its node process does not come up, among them a bare Exception; lets others pass."""

    def __init__(self, ray_error: type[Exception]):
        self._known = (RuntimeError, ConnectionError, TimeoutError, ray_error)
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.error = error
        return kind is Exception or isinstance(error, self._known)


def _temporary_folder() -> tuple[Path, int]:
    """A folder with a short path (Ray's sockets live in it: 107 bytes), and the descriptor of the lock that holds it.

    Folders whose driver was killed are removed on the way. Not known by process ids: containers may share the folder.
    """
    base = Path("/tmp")
    try:
        for old in base.glob(f"kvf-{os.getuid()}-*"):
            with contextlib.suppress(Busy):
                os.close(acquire(old / LOCK, "using this folder"))
                shutil.rmtree(old, ignore_errors=True)
        unnamed = Path(tempfile.mkdtemp(prefix=f".kvf-{os.getuid()}-", dir=base))
        lock = acquire(unnamed / LOCK, "using this folder")
        # Renamed once it is locked, so that no other driver can take it for a leftover in between.
        return unnamed.rename(base / unnamed.name.lstrip(".")), lock
    except OSError as error:
        raise Unavailable(f"Ray needs a folder for its sockets under {base}: {error.strerror}") from error
