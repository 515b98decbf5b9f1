"""A Ray node of one task of a Slurm step: the `ray` command as a child, with ports and a folder of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from kvfrontier.errors import Unavailable
from kvfrontier.run.machine import usable_cores
from kvfrontier.run.placement import visible_gpus
from kvfrontier.run.ray_private import OBJECT_STORE_BYTES

START_TRIES = 3
START_S = 90.0
STOP_S = 8.0
"""A little more than a driver takes to stop."""
POLL_S = 0.2
IS_UP = "Ray runtime started"


@dataclass
class Node:
    """A Ray node of this task: `ray start --block` as a child."""

    folder: Path
    environment: dict[str, str]
    _child: subprocess.Popen[bytes] | None = None
    _address: str = field(default_factory=lambda: own_address())

    def start_head(self) -> str:
        """Returns the address that others join."""
        for left in reversed(range(START_TRIES)):
            port, client = free_ports(2)
            # `ray[client]` opens a port of its own unless told which; the plain `ray` does not know the option.
            options = [f"--ray-client-server-port={client}"] if find_spec("grpc") else []
            if self._start("--head", f"--port={port}", "--include-dashboard=false", *options, is_last=not left):
                return f"{self._address}:{port}"
        raise AssertionError("unreachable: the last try raises")

    def join(self, address: str) -> None:
        """Become a node of the head at `address`."""
        for left in reversed(range(START_TRIES)):
            if self._start(f"--address={address}", is_last=not left):
                return

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._child is not None and self._child.poll() is None

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            end(self._child)

    def _start(self, *options: str, is_last: bool) -> bool:
        ports = free_ports(6)
        names = ("object-manager", "node-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export")
        own = [f"--{name}-port={port}" for name, port in zip((*names, "runtime-env-agent"), ports, strict=True)]
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            *(f"--node-ip-address={self._address}", f"--temp-dir={self.folder}"),
            *(f"--num-cpus={usable_cores()}", f"--num-gpus={visible_gpus()}"),
            *(f"--object-store-memory={OBJECT_STORE_BYTES}", "--min-worker-port=0", "--max-worker-port=0"),
            *own,
            *options,
        ]
        log = self.folder / "start.log"
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self.is_alive:
            if IS_UP in log.read_text(errors="replace"):
                return True
            time.sleep(POLL_S)
        end(self._child)
        if is_last:
            told = " ".join(log.read_text(errors="replace").split())[-800:]
            raise Unavailable(f"Ray did not start on {node_name()} in {START_TRIES} tries; the last one said: {told}")
        return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("", 0))
        return [item.getsockname()[1] for item in sockets]


def own_address() -> str:
    """The address by which other nodes reach this one."""
    for name in (node_name(), socket.gethostname()):
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(name)
            if not address.startswith("127."):
                return address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: asks which of our addresses would be used
        return probe.getsockname()[0]
    return "127.0.0.1"


def node_name() -> str:
    """Slurm's name of this node."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask, wait as long as a driver may take to stop, insist."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
