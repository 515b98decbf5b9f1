"""A Ray cluster that others started, joined by its address: token, our package for its workers, clear refusals."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import kvfrontier
from kvfrontier.errors import Unavailable
from kvfrontier.plan.project import kvfrontier_cache
from kvfrontier.run.placement import Placement
from kvfrontier.run.ray_private import End, Start
from kvfrontier.run.watch import last_resort
from kvfrontier.store.files import explained

logger = logging.getLogger(__name__)

AUTO = "auto"
CONNECT_PATIENCE_S = 5.0
PROBE_PATIENCE_S = 60.0
HANDED_ON = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "KVFRONTIER_ROOT", "KVFRONTIER_RESULTS")
"""Variables of the driver that workers need as well: where files are. Never a token or a key."""
TOKENS = "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"


@dataclass
class RayCluster:
    """See `ray_dispatch.Home`."""

    placement: Placement
    campaign_dir: Path
    on_this_machine = False
    options: Mapping[str, Any] = field(default_factory=lambda: {"scheduling_strategy": "SPREAD"})
    _sign: Path | None = None

    def connect(self, ray: Any) -> Placement:
        address = self.placement.address
        start = Start(ray.exceptions.RayError)
        with start:
            ray.init(
                address, runtime_env=_for_workers(self.placement), log_to_driver=False, logging_level=logging.WARNING
            )
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            logger.info("joined the Ray cluster at %s: %d nodes, %s", address, len(nodes), ray.cluster_resources())
            # At least 1: whether one fits at all may change, and is watched while we wait.
            fitting = max(1, sum(fits(node, self.placement) for node in nodes))
            return replace(self.placement, workers=min(self.placement.workers, fitting))
        raise Unavailable(_why_not(address, start.reason)) from start.error

    def check(self) -> None:
        """The cluster's own business."""

    def mark_for_workers(self) -> Path:
        """A new file in the campaign's folder: a worker that does not see it writes its rows into another one."""
        self._sign = self.campaign_dir / f".driver-{secrets.token_hex(8)}"
        with explained(self._sign):
            self._sign.touch()
        return self._sign

    def remove_mark(self) -> None:
        """What `mark_for_workers` made."""
        if self._sign is not None:
            self._sign.unlink(missing_ok=True)

    def leave(self, ray: Any, end: End) -> None:
        """Leave the cluster, which ends our workers and nothing else."""
        ray.shutdown()


@contextlib.contextmanager
def ray_cluster(placement: Placement, campaign_dir: Path) -> Iterator[RayCluster]:
    """Must be entered before ray is imported: it settles whether a token is used."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")
    address = _checked(placement.address)
    os.environ["RAY_AUTH_MODE"] = _authentication(address)
    home = RayCluster(replace(placement, address=address), campaign_dir)
    try:
        with last_resort(home.remove_mark):
            yield home
    finally:
        home.remove_mark()


def fits(resources: Mapping[str, float], placement: Placement) -> int:
    """How many workers a node with these resources holds."""
    needs = {"CPU": placement.threads, "GPU": placement.gpus}
    return math.floor(min(resources.get(name, 0.0) / need for name, need in needs.items() if need))


def _checked(address: str) -> str:
    """Raise Unavailable at once for what Ray would try for a minute."""
    address = os.environ.get("RAY_ADDRESS", AUTO) if address == AUTO else address
    host, _, port = address.rpartition(":")
    if address == AUTO:
        return address
    if "://" in address or not host or not port.isdigit():
        expected = "HOST:PORT of its head node as `ray start --head` printed it (port 6379 unless set), or `auto`"
        raise Unavailable(f"the address of a Ray cluster is '{address}'; expected {expected}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise Unavailable(_why_not(address, f"{error}")) from error
    return address


def _authentication(address: str) -> str:
    """`token` or `disabled`: what RAY_AUTH_MODE says, or else what the cluster asks for."""
    wanted = os.environ.get("RAY_AUTH_MODE", "").lower()
    for mode in [wanted] if wanted else ["disabled", "token"]:
        if mode == "token" and not _has_token():
            break
        error = _probe(address, mode)
        if "InvalidAuthToken" not in error:
            if error:
                raise Unavailable(_why_not(address, error))
            return mode
    if _has_token() and wanted != "disabled":
        told = f"the token in {_token_source()} is not the one of the Ray cluster at {address}. Put the right one there"
    else:
        off = ", and unset RAY_AUTH_MODE" if wanted == "disabled" else ""
        told = f"the Ray cluster at {address} asks for a token: put it in {TOKENS}{off}"
    raise Unavailable(f"{told} (on the head node: `ray get-auth-token`).")


def _probe(address: str, mode: str) -> str:
    """Empty when the cluster lets us in. In a process of its own: Ray reads the mode once a process."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    command += [] if address == AUTO else ["--address", address]
    try:
        told = subprocess.run(
            command, env={**os.environ, "RAY_AUTH_MODE": mode}, text=True, timeout=PROBE_PATIENCE_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_PATIENCE_S:g} s"
    return "" if told.returncode == 0 else (told.stdout.strip().splitlines() or ["it is not healthy"])[-1]


def _token_source() -> str:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    return os.environ.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")


def _has_token() -> bool:
    source = _token_source()
    return source == "RAY_AUTH_TOKEN" or Path(source).expanduser().is_file()


def _for_workers(placement: Placement) -> dict[str, Any]:
    """Workers import the driver's own code: rows of an older copy would carry the fingerprints of this one."""
    variables = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    variables |= {"KVFRONTIER_CACHE": str(kvfrontier_cache()), "OMP_NUM_THREADS": str(placement.threads)}
    package = str(Path(kvfrontier.__file__).parent)
    return {"env_vars": variables, "py_modules": [package], "excludes": ["__pycache__/"]}


def _why_not(address: str, error: str) -> str:
    hint = (
        "Is it up (`ray status`), is this the port of `ray start --head` (6379 unless set), and is this machine one of "
        "its nodes (`ray start --address=HOST:PORT --num-cpus=0 --num-gpus=0` joins it without taking cells)?"
    )
    if "ersion" in error and "ismatch" in error:
        hint = "Use the same versions of Ray and Python here and on its nodes (envs/core.txt)."
    return f"no Ray cluster to use at {'this machine' if address == AUTO else address}: {error.strip()}. {hint}"
