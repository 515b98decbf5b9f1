"""The Slurm job that this process runs in: what leads from a shard's log to Slurm's own."""

from __future__ import annotations

import os
import re
import subprocess

TIMEOUT_S = 10


def slurm_job() -> str:
    """`Slurm job 17 on node3; its own log, kept if it fails: /.../17.log`; empty outside of a job."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job:
        return ""
    node, told = os.environ.get("SLURMD_NODENAME", ""), _show(job)
    restarts, log = _field("Restarts", r"\d+", told), _field("StdOut", ".+", told)
    parts = [f"Slurm job {job}{f' on {node}' if node else ''}"]
    if restarts.strip("0"):
        parts.append(f"started again after it was put back into the queue (restarts: {restarts})")
    if log:
        parts.append(f"its own log, kept if it fails: {log}")
    return "; ".join(parts)


def _show(job: str) -> str:
    """What Slurm knows of the job; empty where it does not say."""
    command = ["scontrol", "show", "job", job]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _field(name: str, pattern: str, text: str) -> str:
    found = re.search(rf"(?:^|\s){name}=({pattern})", text)
    return found[1].strip() if found else ""
