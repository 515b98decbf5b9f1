"""What presses kvpress has and what they take: asked of its own environment, once, in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvfrontier.errors import Unavailable
from kvfrontier.plan.environment import Environment

logger = logging.getLogger(__name__)

ENVIRONMENT = Environment("kvpress")
FILE = "presses.json"
"""In the environment's folder."""

PROGRAM = """
import inspect, json, types
import kvpress

def takes_ratio(cls, names):
    if "compression_ratio" in names:
        return True
    bare = object.__new__(cls)  # a press around another one hands the ratio on, or refuses it
    bare.press = types.SimpleNamespace(compression_ratio=0.0)
    try:
        bare.compression_ratio = 0.5
    except AttributeError:
        return False
    return bare.press.compression_ratio == 0.5

found = {}
for name, cls in vars(kvpress).items():
    if inspect.isclass(cls) and issubclass(cls, kvpress.BasePress):
        names = inspect.signature(cls).parameters
        required = {key: item.default is inspect.Parameter.empty for key, item in names.items()}
        chunk = getattr(names.get("chunk_length"), "default", None) or 0
        found[name] = {"parameters": required, "takes_ratio": takes_ratio(cls, names), "chunk_length": chunk}
print(json.dumps(found))
"""


def presses() -> dict[str, Any]:
    """Press -> its `parameters` (name -> whether it is required), whether it `takes_ratio`, its default `chunk_length`.

    Empty where the environment is not made. Raises Unavailable where kvpress does not answer.
    """
    return _read(ENVIRONMENT.folder) if ENVIRONMENT.is_made else {}


@lru_cache(maxsize=2)
def _read(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    if not path.is_file():
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(_ask())
        partial.replace(path)
    return json.loads(path.read_text())


def _ask() -> str:
    logger.info("asking kvpress which presses it has (once)")
    asked = subprocess.run([ENVIRONMENT.python, "-I", "-c", PROGRAM], capture_output=True, text=True)
    if asked.returncode:
        said = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Unavailable(f"kvpress in {ENVIRONMENT.folder} does not say which presses it has: {said}")
    return asked.stdout.splitlines()[-1]
