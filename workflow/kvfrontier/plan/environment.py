"""Environments: which Python an engine's cells run in. `core` is the one that runs this; envs/NAME.txt pins another.

One that is made lies in the user's cache, in a folder named after its pins: other pins are another environment. What is
in it is read from its files; nothing of it is ever imported into this process.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import kvfrontier
from kvfrontier.errors import Unavailable, Unsupported
from kvfrontier.plan.project import kvfrontier_cache

CORE = "core"
PINS = Path(kvfrontier.__file__).parents[2] / "envs"
STAMP = ".made-from"
"""In an environment's folder, written last: what it was made from."""
FOLDER = "envs"
NOT_INSTALLED = "not installed"


@dataclass(frozen=True)
class Environment:
    """What one of envs/*.txt but the core's pins, made or not."""

    name: str

    @property
    def pins(self) -> Path:
        """The requirements, with exact versions."""
        return PINS / f"{self.name}.txt"

    @property
    def finish(self) -> Path:
        """A script that runs once all is installed, where there is one: what pins cannot say."""
        return PINS / f"{self.name}.post-deploy.sh"

    @property
    def digest(self) -> str:
        """Of the pins, of what finishes it, and of the Python that they are for."""
        made_from = b"".join(path.read_bytes() for path in (self.pins, self.finish) if path.is_file())
        return hashlib.sha256(made_from + sys.implementation.cache_tag.encode()).hexdigest()

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return Path(sys.prefix) if self.is_here else kvfrontier_cache() / FOLDER / f"{self.name}-{self.digest[:12]}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def is_made(self) -> bool:
        """Whether it is whole."""
        stamp = self.folder / STAMP
        return self.is_here or (stamp.is_file() and stamp.read_text() == self.digest)

    @property
    def is_here(self) -> bool:
        """Whether this process runs in it, as a worker does that may have no checkout, and so no pins."""
        return running_in().rpartition("-")[0] == self.name

    @property
    def recipe(self) -> str:
        """The command that makes it."""
        return f"kvfrontier env make {self.name}"

    @property
    def advice(self) -> str:
        """What a row says that could not be measured for want of it."""
        return f"environment '{self.name}' is missing: {self.recipe}"

    def require(self) -> None:
        """Raise Unsupported where it is not made."""
        if not self.is_made:
            raise Unsupported(self.advice)

    def version(self, distribution: str) -> str:
        """Of a package in it, from its metadata."""
        if not self.is_made:
            return NOT_INSTALLED
        places = [str(place) for place in self.folder.glob("lib/python*/site-packages")]
        return next((found.version for found in distributions(name=distribution, path=places)), NOT_INSTALLED)

    def variables(self) -> dict[str, str]:
        """With these its Python finds the code that runs here."""
        paths = (str(Path(kvfrontier.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def for_a_shell(self) -> str:
        """Its Python, to be put in front of a shell's words. Where it is missing, another one, which says so itself."""
        candidates = (shlex.quote(str(path)) for path in (self.python, sys.executable, "python3"))
        return f'"$({" || ".join(f"command -v {path}" for path in candidates)})"'


def other(name: str) -> Environment | None:
    """The environment of that name; None for the core's."""
    return None if name == CORE else Environment(name)


def environments() -> Iterator[Environment]:
    """All that this checkout has pins for, by name."""
    return (Environment(path.stem) for path in sorted(PINS.glob("*.txt")) if path.stem != CORE)


def running_in() -> str:
    """Name of the folder of the environment whose Python runs this; empty in the core's."""
    here = Path(sys.prefix)
    return here.name if here.parent.name == FOLDER and (here / STAMP).is_file() else ""


def require_here(name: str) -> None:
    """Raise Unavailable unless this process runs in the environment `name`, as its driver had planned."""
    environment = other(name)
    if environment and not environment.is_here:
        raise Unavailable(environment.advice)


def qualified(distribution: str, environment: str) -> str:
    """How `package_version` is asked for a package of an environment."""
    return distribution if environment == CORE else f"{environment}/{distribution}"
