"""The folder in which vLLM's ExampleConnector keeps blocks on disk: one engine's own, gone with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


class DiskTier:
    """An empty folder under the temporary one."""

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="kvfrontier-vllm-", ignore_cleanup_errors=True)
        self.folder = Path(self._held.name)

    @property
    def bytes(self) -> int:
        """Of all files in it."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def clear(self) -> None:
        """Forget everything."""
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    def remove(self) -> None:
        """Leave nothing behind; a process that ends without asking leaves nothing either, unless it is killed."""
        self._held.cleanup()
