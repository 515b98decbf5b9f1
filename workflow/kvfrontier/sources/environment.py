"""Makes environments: a venv in the user's cache with what envs/NAME.txt pins, whole or not there at all."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from importlib.metadata import version
from pathlib import Path

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.plan.environment import STAMP, Environment
from kvfrontier.sources.cache import locked, make_folder

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 5.0
SHOWN_LINES = 15
PROBE = "import kvfrontier.run.worker, importlib.metadata as m; print(m.version('ray'))"
"""What a worker begins with: it must find this code's own packages, and the Ray of its driver."""


def make(environment: Environment) -> Path:
    """The environment's folder, made where it is not there yet or only half of it is.

    Raises Unavailable where pip cannot do it, KVFrontierError where the pins are not enough for a worker.
    """
    folder = environment.folder
    with locked(f"environment-{folder.name}"):
        if environment.is_made:
            return folder
        make_folder(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            logger.info("making the environment '%s' in %s (once)", environment.name, folder)
            _install(environment)
            _probe(environment)
            (folder / STAMP).write_text(environment.digest)  # last: a folder without it is made again
        finally:
            if not environment.is_made:
                shutil.rmtree(folder, ignore_errors=True)
    return folder


def _install(environment: Environment) -> None:
    # Without PYTHONPATH, on which pip would find packages that it then does not install.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    _told([sys.executable, "-m", "venv", "--without-pip", str(environment.folder)], environment, variables)
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python), "install", "-r", str(environment.pins)]
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-compile"]
    _told([*pip, *options], environment, variables)
    if environment.finish.is_file():
        places = (environment.python.parent, Path(sys.executable).parent, os.environ["PATH"])
        pip_works_there = {"PATH": os.pathsep.join(map(str, places)), "PIP_PYTHON": str(environment.python)}
        _told(["bash", str(environment.finish)], environment, {**variables, **pip_works_there})


def _probe(environment: Environment) -> None:
    """Start as a worker does."""
    variables = {**os.environ, **environment.variables()}
    found = _told([str(environment.python), "-c", PROBE], environment, variables)[-1]
    if found != version("ray"):
        raise KVFrontierError(
            f"{environment.pins} pins ray {found}, this Python has {version('ray')}: they must be the same"
        )


def _told(command: list[str], environment: Environment, variables: dict[str, str]) -> list[str]:
    """Run a command, tell how far pip is, return its last lines. Raises Unavailable with them where it fails."""
    lines: deque[str] = deque([""], SHOWN_LINES)
    fetched, spoken_s = 0, time.monotonic()
    with subprocess.Popen(
        command, env=variables, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            fetched += line.startswith("Collecting")
            if line.startswith("Installing collected"):
                logger.info("  installing %d packages", line.count(",") + 1)
            elif line.startswith("Collecting") and time.monotonic() - spoken_s > PROGRESS_INTERVAL_S:
                logger.info("  fetching package %d: %s", fetched, line.split()[1])
                spoken_s = time.monotonic()
    if process.returncode:
        shown = "\n  ".join(filter(None, lines))
        raise Unavailable(f"the environment '{environment.name}' could not be made. It said:\n  {shown}")
    return list(lines)
