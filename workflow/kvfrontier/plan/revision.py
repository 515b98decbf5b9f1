"""What git says of the checkout, where there is one: the revision that rows carry, and the commits people name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

GIT_TIMEOUT_S = 5
CHANGED = " with local changes"
"""Follows the revision where tracked files differ from it."""
_HEXADECIMAL = re.compile(r"[0-9a-f]{4,40}")


def current_revision(root: Path) -> str:
    """The commit that is checked out at `root`, and CHANGED where files differ from it; empty where git cannot tell."""
    revision = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    changes = _git(root, "status", "--porcelain", "--untracked-files=no") if revision else None
    if changes is None:
        return ""
    return f"{revision}{CHANGED}" if changes else revision


def resolve(root: Path, name: str) -> str:
    """The full hash of a commit by any name git knows (`HEAD~1`, a tag, a prefix); else `name` itself if it could be
    the beginning of a hash, for rows that came from another checkout; else an empty string."""
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return found or (name.lower() if _HEXADECIMAL.fullmatch(name.lower()) else "")


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None when it is missing, fails or does not answer."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
