"""Which file system temporary files lie on: `tmpfs` is RAM, and a measurement there is none of a disk."""

from __future__ import annotations

import tempfile
from pathlib import Path


def temporary_file_system(mounts: str = "/proc/self/mounts") -> str:
    """Its type, such as ext4, or `unknown`."""
    folder = Path(tempfile.gettempdir()).resolve()
    try:
        lines = [line.split() for line in Path(mounts).read_text().splitlines()]
    except OSError:
        return "unknown"
    # The longest mount point above the folder; of two at one place the later hides the earlier.
    above = [
        (len(Path(fields[1]).parts), index) for index, fields in enumerate(lines) if folder.is_relative_to(fields[1])
    ]
    return lines[max(above)[1]][2] if above else "unknown"
