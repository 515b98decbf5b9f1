"""What profiles/slurm must know of the cluster that it submits to: how to ask after jobs without ever hanging."""

from __future__ import annotations

import getpass
import re
import subprocess
import sys
from functools import cache

from kvfrontier.errors import Unavailable
from kvfrontier.plan.project import Project

TIMEOUT_S = 20
LONGEST_PAUSE_S = 180
"""Between two of the plugin's looks at its jobs."""
LEAST_JOB_AGE_S = LONGEST_PAUSE_S + 60
"""Slurm must remember an ended job for so long, or `squeue` misses its end and Snakemake waits for ever."""
DEFAULT = "*"
DATABASE = "accounting_storage/slurmdbd"
_SETTING = re.compile(r"^(AccountingStorageType|MinJobAge|ClusterName)\s*=\s*(\S+)", re.MULTILINE)


@cache
def status_command() -> str:
    """`sacct` where accounting answers, else `squeue`; raises Unavailable where neither can be relied upon.

    The plugin's own choice is sacct wherever that is installed. Without a database behind it the plugin forgets its
    jobs after a few failures and waits for ever.
    """
    try:
        told = _ask("scontrol", "show", "config")
    except FileNotFoundError:
        raise Unavailable(
            "no Slurm on this machine (there is no `scontrol`). Run this on a login node of the cluster, "
            "or use --profile profiles/local"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"Slurm does not answer: {_words(error)}. Nothing was submitted; try `sinfo`, and again when it works"
        ) from None
    found = dict(_SETTING.findall(told))
    if found.get("AccountingStorageType") == DATABASE and _accounting_answers():
        return "sacct"
    age_s = int(found.get("MinJobAge", "0")) if found.get("MinJobAge", "0").isdigit() else 0
    if age_s >= LEAST_JOB_AGE_S:
        return "squeue"
    raise Unavailable(
        f"cluster '{found.get('ClusterName', '?')}' has no accounting that answers, and forgets ended jobs after "
        f"{age_s} s (MinJobAge), less than the {LEAST_JOB_AGE_S} s that asking `squeue` needs. Nothing was submitted. "
        f"Ask its administrators for MinJobAge={LEAST_JOB_AGE_S} or accounting; meanwhile run shards by hand: "
        "sbatch ... --wrap 'kvfrontier measure CAMPAIGN SHARD', then snakemake --profile profiles/local"
    )


def status_command_or_exit() -> str:
    """The same for the profile: an exception there would come after a hundred lines of Snakemake's usage."""
    try:
        return status_command()
    except Unavailable as error:
        sys.exit(f"profiles/slurm: {error}.")


def longest_minutes(partitions: str | None) -> int | None:
    """The time limit of a partition (of several, `a,b`: the least; None: of the default one). None: there is none.

    Slurm takes a job that asks for more, unless it is told not to, and lets it wait for ever.
    """
    limits = _time_limits()
    known = [limits.get(name) for name in (partitions or DEFAULT).split(",")]
    return min((limit for limit in known if limit is not None), default=None)


@cache
def _time_limits() -> dict[str, int | None]:
    """Partition -> minutes, the default one also as DEFAULT; empty where Slurm does not say."""
    try:
        lines = _ask("sinfo", "--noheader", "--format=%P|%l").splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    found = {}
    for name, _, limit in (line.strip().partition("|") for line in lines):
        found[name.rstrip("*")] = _minutes(limit)
        if name.endswith("*"):
            found[DEFAULT] = _minutes(limit)
    return found


def _minutes(limit: str) -> int | None:
    """`2-00:00:00`, `12:00:00`, `30:00`; None for `infinite` and the like."""
    days, _, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in (days or "0", *parts)):
        return None
    seconds = sum(int(part) * 60**place for place, part in enumerate(reversed(parts)))
    return int(days or 0) * 24 * 60 + seconds // 60


def log_folder() -> str:
    """Where the output of Slurm jobs goes: beside all other results."""
    return str(Project.find().results.resolve() / "slurm")


def _accounting_answers() -> bool:
    query = ("sacct", "-X", "-n", "--parsable2", "--format=JobIdRaw,State", "--user", getpass.getuser())
    try:
        _ask(*query)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _ask(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    ).stdout


def _words(error: Exception) -> str:
    told = getattr(error, "stderr", None)
    text = told.decode(errors="replace") if isinstance(told, bytes) else told or str(error)
    return " ".join(text.split())
