"""A Ray of this driver alone: started here, shared with nobody, and gone with the driver, whatever ends that."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from kvfrontier.errors import Unavailable
from kvfrontier.run import guard as guarding
from kvfrontier.run.placement import Placement
from kvfrontier.run.socket_folder import socket_folder
from kvfrontier.run.watch import last_resort

logger = logging.getLogger(__name__)

End = Literal["done", "stopped", "failed"]
START_TRIES = 3
OBJECT_STORE_BYTES = 80 * 2**20  # rows go to disk, not through Ray; its default is 30 % of the machine's memory
SWEEP_PATIENCE_S = 10.0
CORE = ("gcs_server", "raylet")
SETTINGS = re.compile(r"RAY_[A-Z0-9_]+")
"""Names of what Ray's own programs read: those of a foreign Ray around us would lead us to it."""


@dataclass
class PrivateRay:
    """See `ray_dispatch.Home`."""

    placement: Placement
    folder: Path
    guard: subprocess.Popen[bytes]
    on_this_machine = True
    options: Mapping[str, Any] = field(default_factory=dict)
    _core: list[psutil.Process] = field(default_factory=list)

    def connect(self, ray: Any) -> Placement:
        for attempt in range(1, START_TRIES + 1):
            start = Start(ray.exceptions.RayError)
            with start:
                ray.init(
                    "local",
                    num_cpus=self.placement.workers * self.placement.threads,
                    num_gpus=round(self.placement.workers * self.placement.gpus),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    _temp_dir=str(self.folder),
                )
                self._core = [child for child in psutil.Process().children() if child.name() in CORE]
                return self.placement
            # Ray gives its node process a fixed 30 s, too little on a machine that is busy.
            logger.warning("Ray did not start (try %d of %d): %s", attempt, START_TRIES, start.error)
            ray.shutdown()
        raise Unavailable(f"Ray did not start in {START_TRIES} tries: {start.reason}") from start.error

    def check(self) -> None:
        """Ray itself takes more than a minute to find that out."""
        dead = [process for process in self._core if not _is_alive(process)]
        if dead:
            raise Unavailable("A process of Ray itself died. What was measured is kept; run again to go on.")

    def mark_for_workers(self) -> None:
        """Workers run here and see what we see."""

    def leave(self, ray: Any, end: End) -> None:
        """End every process of this Ray, by asking it where all is well: otherwise that could take a minute.

        Where it is not asked at all, the process must end at once: what Ray does at exit would make its folder anew.
        """
        if end == "done":
            ray.shutdown()
        self.sweep()
        if end == "failed":
            ray.shutdown()

    def sweep(self) -> None:
        """Let the guard do its work now. Two threads may call this at once."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.guard.stdin.close()
            self.guard.wait(SWEEP_PATIENCE_S)


@contextlib.contextmanager
def private_ray(placement: Placement) -> Iterator[PrivateRay]:
    """Leaves no process and no file behind. Must be entered before ray is imported: it sets the environment."""
    folder, lock = socket_folder()
    _set_environment()
    command = [sys.executable, "-m", guarding.__name__, str(folder)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    home = PrivateRay(placement, folder, guard)
    try:
        with last_resort(home.sweep):
            yield home
    finally:
        home.sweep()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _set_environment() -> None:
    for name in [name for name in os.environ if SETTINGS.fullmatch(name)]:
        del os.environ[name]
    os.environ.update(own_settings())


def own_settings() -> dict[str, str]:
    """Variables for a new Ray that has nothing to do with any other, and by whose mark `guard` ends all it started."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # What is measured must not give way to whatever else runs; Ray would start its workers at 15.
        "RAY_worker_niceness": "0",
        # No processes ahead of the actors: ray.init would wait for them, and for ever where one dies before it is up.
        "RAY_prestart_worker_first_driver": "0",
        # A token of our own: other users of the machine cannot reach this Ray, and no file in the home folder matters.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "SPT_NOENV": "1",  # so that workers, which change their titles, keep their marks
        guarding.MARK: secrets.token_hex(16),
    }


class Start:
    """Keeps what Ray raises when it does not come up, among them a bare Exception; lets others pass."""

    def __init__(self, ray_error: type[Exception]):
        self._known = (RuntimeError, OSError, ValueError, ray_error)
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.error = error
        return kind is Exception or isinstance(error, self._known)

    @property
    def reason(self) -> str:
        """The first line of it."""
        return str(self.error).strip().partition("\n")[0]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
