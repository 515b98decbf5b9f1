"""Ends a Snakemake that waits for Slurm jobs which are long gone: left to itself, it would wait for ever.

It misses a job's end when Slurm's controller is out for longer than the plugin tries, when the login node sleeps for
longer than Slurm remembers ended jobs, and when a partition cancels the jobs that it preempts.
"""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from functools import cache

import psutil

POLL_S = 60.0
QUIET_S = 900.0
"""Without a job and without work of its own. In a healthy run the plugin looks every 3 minutes at the latest."""
PATIENCE_S = 300.0
"""For Snakemake to end after it was told; it may sleep until its next look."""
ASK_S = 30
HAS_LOST_JOBS = """
kvfrontier: Slurm has had no job of this run for {minutes:.0f} minutes, and Snakemake still waits for some: it has
missed their ends. Stopping. What was measured is kept; run the same command again to go on
(docs/cluster.md, "Accounting or not").
"""


@cache
def job_prefix() -> str:
    """What the names of this process's jobs begin with; profiles/slurm gives it to the plugin."""
    return f"kvfrontier-{secrets.token_hex(4)}"


def watch_for_lost_jobs(poll_s: float = POLL_S, quiet_s: float = QUIET_S, patience_s: float = PATIENCE_S) -> None:
    """Called when jobs start; costs a `squeue` a minute."""
    threading.Thread(target=_watch, args=(job_prefix(), poll_s, quiet_s, patience_s), daemon=True).start()


def _watch(prefix: str, poll_s: float, quiet_s: float, patience_s: float) -> None:
    busy_s = time.monotonic()
    while time.monotonic() - busy_s < quiet_s:
        if _has_own_work() or _has_jobs(prefix):
            busy_s = time.monotonic()
        time.sleep(poll_s)
    sys.stderr.write(HAS_LOST_JOBS.format(minutes=quiet_s / 60))
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience_s)
    os._exit(1)


def _has_own_work() -> bool:
    """Local rules run as children."""
    return any(_runs(child) for child in psutil.Process().children())


def _runs(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # ended since it was listed
        return False


def _has_jobs(prefix: str) -> bool:
    """True also where Slurm does not answer: then nobody knows."""
    try:
        told = subprocess.run(
            ["squeue", "--user", getpass.getuser(), "--noheader", "--format=%j"],
            capture_output=True, text=True, check=True, timeout=ASK_S, stdin=subprocess.DEVNULL,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return True
    return any(name.startswith(prefix) for name in told.split())
