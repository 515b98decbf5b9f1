"""Engine workers as Ray actors, on a private Ray of this driver or on a running cluster. Only this file imports ray.

`ray` is imported when a pool is opened: a shard with nothing to measure never pays for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kvfrontier.errors import Unavailable
from kvfrontier.plan.environment import other
from kvfrontier.plan.project import Project
from kvfrontier.run.machine import OutOfMemoryKills
from kvfrontier.run.meeting import Meeting, meet
from kvfrontier.run.placement import Placement
from kvfrontier.run.ray_cluster import fits, ray_cluster
from kvfrontier.run.ray_private import End, private_ray
from kvfrontier.run.schedule import Died, Event, Up
from kvfrontier.run.watch import Stopped, deferred, insist_on_handlers
from kvfrontier.run.worker import EngineWorker, Task

logger = logging.getLogger(__name__)

SLICE_S = 0.5
EXIT_PATIENCE_S = 5.0
START_PATIENCE_S = 300.0
"""How long we wait for a first worker where no node could hold one, or where one could and yet none comes up."""
NODES_NEED = (
    "On a Ray cluster, its nodes need the packages of envs/core.txt in the Python that Ray was started with. Here: has "
    "the code changed since the run began? Then run again."
)
_NOT_IMPORTABLE = re.compile(
    r"failed to import on the worker.*(?P<why>\b\w+Error: .{,200})"
    r"|(?P<other>((ModuleNotFound|Import)Error|Failed to set up runtime environment).{,200})"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LOST = re.compile(r"node .{,80}(died|dead|terminated)")


class Home(Protocol):
    """The Ray that workers live on."""

    on_this_machine: bool
    options: Mapping[str, Any]  # of every actor

    def connect(self, ray: Any) -> Placement:
        """Start or join it; returns what there is place for."""

    def mark_for_workers(self) -> Path | None:
        """A file that every worker must see."""

    def check(self) -> None:
        """Raise Unavailable when it is no longer there; called about twice a second."""

    def leave(self, ray: Any, end: End) -> None:
        """End our workers, and Ray itself if it is ours. After `stopped` the process ends at once."""


@dataclass
class RayPool:
    """See `schedule.Pool`."""

    ray: Any
    home: Home
    placement: Placement
    project: Project
    campaign_dir: Path
    group: str
    stop_if_asked: Callable[[], None] = lambda: None
    _sign: Path | None = None
    _actors: dict[int, Any] = field(default_factory=dict)
    _met: dict[int, Meeting] = field(default_factory=dict)
    _meetings: dict[Any, int] = field(default_factory=dict)
    _calls: dict[Any, int] = field(default_factory=dict)
    _kernel: OutOfMemoryKills = field(default_factory=OutOfMemoryKills)
    _quiet_since_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._sign = self.home.mark_for_workers()

    def start(self, worker: int) -> None:
        self.stop(worker)
        actor_class = self.ray.remote(EngineWorker).options(
            num_cpus=self.placement.threads,
            num_gpus=self.placement.gpus,
            max_restarts=0,
            max_task_retries=0,
            enable_task_events=False,
            **self.home.options,
            **self._own_python(),
        )
        self._actors[worker] = actor = actor_class.remote(self.project, self.campaign_dir, self.group)
        self._meetings[actor.__ray_call__.remote(meet, self._sign, self.project.root)] = worker

    def _own_python(self) -> dict[str, Any]:
        """Where the engine has an environment of its own. A cluster's workers get our code as that of all of them."""
        environment = other(self.placement.environment)
        if environment is None:
            return {}
        code = environment.variables() if self.home.on_this_machine else {}
        return {"runtime_env": {"py_executable": environment.for_a_shell(), "env_vars": code}}

    def stop(self, worker: int) -> None:
        actor = self._actors.pop(worker, None)
        if actor is None:
            return
        for calls in (self._calls, self._meetings):
            for call in [call for call, owner in calls.items() if owner == worker]:
                del calls[call]
        self.ray.kill(actor, no_restart=True)
        self._see_it_gone(self._met.pop(worker, None))

    def submit(self, worker: int, tasks: Sequence[Task], concurrent_cells: int) -> None:
        self._calls[self._actors[worker].run_bundle.remote(tasks, concurrent_cells)] = worker

    def wait(self, timeout_s: float) -> list[tuple[int, Event]]:
        calls = [*self._calls, *self._meetings]
        ready, _ = self.ray.wait(calls, num_returns=1, timeout=min(timeout_s, SLICE_S))
        self.stop_if_asked()
        if not ready:  # while answers come it is alive
            self.home.check()
        if ready or self._calls:
            self._quiet_since_s = time.monotonic()
        elif time.monotonic() - self._quiet_since_s > START_PATIENCE_S:
            self._tell_why_none_starts()
        return [self._event(call) for call in ready]

    def _event(self, call: Any) -> tuple[int, Event]:
        worker = self._calls.pop(call, None)
        if worker is not None:
            return worker, self._result(call)
        worker = self._meetings.pop(call)
        met = self._meeting(call)
        if isinstance(met, Died):
            return worker, met
        self._met[worker] = met
        return worker, Up(met.host)

    def _meeting(self, call: Any) -> Meeting | Died:
        met = self._result(call)
        if isinstance(met, Died) and (told := _NOT_IMPORTABLE.search(str(met))):
            raise Unavailable(f"workers cannot run kvfrontier: {told['why'] or told['other']}. {NODES_NEED}")
        if isinstance(met, Meeting) and met.lacks:
            raise Unavailable(
                f"the worker on node {met.host} does not see {met.lacks}: rows go through a folder that the driver and "
                "all nodes share. Set KVFRONTIER_RESULTS to such a folder, or keep that node out of the cluster."
            )
        return met

    def _result(self, call: Any) -> Any:
        try:
            return self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            logger.info("%s", error)
            told = " ".join(_COLOR.sub("", str(error)).split())
            told = told.rpartition("The actor is dead because ")[2].partition(". Some common")[0]
            is_killed = self._kernel.has_killed()  # asked each time: it counts
            is_oom = is_killed or "OutOfMemory" in type(error).__name__ or "memory pressure" in told
            return Died(told, is_oom, is_lost=_LOST.search(told) is not None)

    def _tell_why_none_starts(self) -> None:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        need = f"{self.placement.threads} CPUs" + (f" and {self.placement.gpus:g} GPU" if self.placement.gpus else "")
        if not any(fits(node, self.placement) for node in nodes):
            has = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
            raise Unavailable(f"a worker needs {need}, and no node of the Ray cluster has that much ({has}).")
        if fits(self.ray.available_resources(), self.placement):
            raise Unavailable(f"no worker came up in {START_PATIENCE_S:g} s though {need} are free; run again.")
        logger.warning("still waiting: all of the cluster is in use (a worker needs %s)", need)
        self._quiet_since_s = time.monotonic()

    def _see_it_gone(self, met: Meeting | None) -> None:
        """A worker stuck in native code may outlive `ray.kill`; on our own machine make sure, and free its memory."""
        if met is None or not self.home.on_this_machine:
            return
        deadline_s = time.monotonic() + EXIT_PATIENCE_S
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            while time.monotonic() < deadline_s:
                os.kill(met.pid, 0)
                if Path(f"/proc/{met.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return
                time.sleep(0.02)
            os.kill(met.pid, signal.SIGKILL)


@contextlib.contextmanager
def ray_pool(placement: Placement, project: Project, campaign_dir: Path, group: str) -> Iterator[RayPool]:
    """Start Ray (or join the cluster at `placement.address`), and leave no process and no file of it behind."""
    os.environ["OMP_NUM_THREADS"] = str(placement.threads)  # otherwise Ray picks one
    settings = ray_cluster(placement, campaign_dir) if placement.address else private_ray(placement)
    with deferred() as stop_if_asked, settings as home:
        stop_if_asked()
        import ray

        end: End = "failed"
        try:
            placement = home.connect(ray)
            insist_on_handlers()  # Ray has put its own in place
            stop_if_asked()
            yield RayPool(ray, home, placement, project, campaign_dir, group, stop_if_asked)
            end = "done"
        except Stopped:
            end = "stopped"
            raise
        finally:
            insist_on_handlers()
            home.leave(ray, end)
