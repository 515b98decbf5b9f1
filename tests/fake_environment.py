"""An environment that costs nothing: its wheels are written here, and a path file lends it what this Python has."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from zipfile import ZipFile

LIBRARY, VERSION = "fakelib", "1.2"
PACKAGES = sysconfig.get_path("purelib")


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str] | None = None) -> None:
    """A wheel of `name` that pip installs."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    content = {
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


class FakeEnvironment:
    """Pins of an environment `fake` under `root`/envs, wheels for pip, and a cache of its own."""

    name = "fake"

    def __init__(self, root: Path):
        self.pins, self.wheels, self.cache = root / "envs", root / "wheels", root / "cache"
        self.pins.mkdir()
        self.pin(f"{LIBRARY}=={VERSION}")
        write_wheel(self.wheels, LIBRARY, VERSION, {"lent.pth": f"{PACKAGES}\n"})

    def pin(self, *requirements: str) -> None:
        """Write envs/fake.txt."""
        (self.pins / f"{self.name}.txt").write_text("".join(f"{line}\n" for line in requirements))

    @property
    def variables(self) -> dict[str, str]:
        """With these pip takes our wheels and no others."""
        return {"KVFRONTIER_CACHE": str(self.cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
