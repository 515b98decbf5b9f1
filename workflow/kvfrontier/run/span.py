"""One Ray over the nodes of a Slurm job: `srun ... python -m kvfrontier.run.span FOLDER WORKERS COMMAND...`

Every task of the step starts a Ray node; task 0 starts the head, and COMMAND once all have joined, with `--ray-address`
and `--workers` added to it. No file, port, token or process is shared with any other Ray, and what a task started ends
with it, whatever ends it. FOLDER is one that all nodes see.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kvfrontier.errors import Unavailable
from kvfrontier.run import guard as guarding
from kvfrontier.run.ray_private import SETTINGS, own_settings
from kvfrontier.run.socket_folder import socket_folder
from kvfrontier.run.span_node import POLL_S, Node, end, node_name
from kvfrontier.run.watch import EXIT_CODE, SIGNALS, Stopped

JOIN_S = 300.0
"""For all nodes to join: their tasks may start late, and Ray gives its node process 30 s, too little on a busy node."""
FAREWELL_S = 6.0


@dataclass(frozen=True)
class Meeting:
    """Files by which the tasks of one step find each other; `folder` is of this step alone."""

    folder: Path
    rank: int
    nodes: int

    @classmethod
    def of_this_step(cls, shared: Path) -> Meeting:
        """From Slurm's environment. A requeued job keeps its number: the launcher's port makes it another meeting."""
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_LAUNCHER_PORT", "SLURM_PROCID", "SLURM_NTASKS")
        missing = [name for name in names if name not in os.environ]
        if missing:
            raise Unavailable(f"start this by srun inside a Slurm job ({', '.join(missing)} not set)")
        job, step, port, rank, nodes = (os.environ[name] for name in names)
        return cls(shared / f"span-{job}-{step}-{port}", int(rank), int(nodes))

    def open(self, address: str, token: str) -> None:
        """Say where the head is. The token is for this user alone."""
        with open(os.open(self.folder / ".head", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"address": address, "token": token}, file)
        (self.folder / ".head").replace(self.folder / "head")

    def head(self) -> dict[str, str] | None:
        """What `open` wrote; None before."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / "head").read_text())
        return None

    def joined(self) -> int:
        """How many nodes have said so."""
        return len(list(self.folder.glob("joined-*")))

    @property
    def is_over(self) -> bool:
        """Whether task 0 has ended."""
        return (self.folder / "over").exists()


def run(shared: Path, workers: int, command: list[str]) -> int:
    """What one task does; its exit code."""
    meeting = Meeting.of_this_step(shared)
    meeting.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with own_ray() as (folder, environment):
        node = Node(folder, environment)
        if meeting.rank == 0:
            return _lead(meeting, node, workers, command)
        return _follow(meeting, node)


def _lead(meeting: Meeting, node: Node, workers: int, command: list[str]) -> int:
    token = node.environment["RAY_AUTH_TOKEN"]
    child = None
    try:
        address = node.start_head()
        meeting.open(address, token)
        _wait(lambda: meeting.joined() >= meeting.nodes - 1 or not node.is_alive, JOIN_S)
        if meeting.joined() < meeting.nodes - 1:
            found = f"{meeting.joined() + 1} of {meeting.nodes}"
            raise Unavailable(f"{found} nodes joined the Ray of this job in {JOIN_S:g} s; Slurm's log has their errors")
        told = [*command, "--ray-address", address, "--workers", str(workers)]
        child = subprocess.Popen(told, env=node.environment)
        return child.wait()
    finally:
        if child is not None:
            end(child)
        (meeting.folder / "over").touch()
        _wait(lambda: not list(meeting.folder.glob("joined-*")), FAREWELL_S)
        shutil.rmtree(meeting.folder, ignore_errors=True)


def _follow(meeting: Meeting, node: Node) -> int:
    mark = meeting.folder / f"joined-{meeting.rank}"
    try:
        _wait(lambda: meeting.head() or meeting.is_over, JOIN_S)
        head = meeting.head()
        if head is None:
            raise Unavailable(f"{node_name()} has heard nothing of the job's first node in {JOIN_S:g} s")
        node.environment["RAY_AUTH_TOKEN"] = head["token"]
        while not meeting.is_over and meeting.folder.exists():
            if not node.is_alive:  # now, or again after it died
                node.join(head["address"])
                with contextlib.suppress(FileNotFoundError):  # all is over since
                    mark.touch()
            time.sleep(POLL_S)
        return 0
    finally:
        mark.unlink(missing_ok=True)


@contextlib.contextmanager
def own_ray() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder and an environment for a Ray that has nothing to do with any other; ends all that it started."""
    folder, lock = socket_folder()
    environment = {name: value for name, value in os.environ.items() if not SETTINGS.fullmatch(name)}
    environment |= own_settings()
    command = [sys.executable, "-m", guarding.__name__, str(folder)]
    guard = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield folder, environment
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.communicate(timeout=FAREWELL_S)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _wait(is_true: Callable[[], object], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true() and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def _stop(number: int, frame: FrameType | None) -> None:
    for name in SIGNALS:
        signal.signal(name, signal.SIG_IGN)  # a second one must not break the cleaning up
    raise Stopped(signal.Signals(number).name)


def main() -> int:
    """Exit code of the command; 1 with a message where Ray cannot be had."""
    shared, workers, *command = sys.argv[1:]
    for number in SIGNALS:
        signal.signal(number, _stop)
    try:
        return run(Path(shared), int(workers), command)
    except Stopped:
        return EXIT_CODE
    except Unavailable as error:
        sys.stderr.write(f"{node_name()}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
