"""Is a campaign being run? Its lock is held from the making of the plan until Snakemake ends, however that ends."""

from __future__ import annotations

from pathlib import Path

from kvfrontier.store.lock import Busy, acquire, holder_of

LOCK = ".lock"


def hold(campaign_dir: Path) -> int:
    """Take the campaign for this process (see `lock.acquire`); raises Busy."""
    return acquire(campaign_dir / LOCK, _purpose(campaign_dir))


def is_running(campaign_dir: Path) -> bool:
    """Whether some process runs the campaign now."""
    return holder_of(campaign_dir / LOCK, _purpose(campaign_dir)) is not None


def keep_plan_of_run(campaign_dir: Path) -> None:
    """Raise Busy while the campaign runs: its jobs read the plan on disk, so another one must not replace it."""
    busy = holder_of(campaign_dir / LOCK, _purpose(campaign_dir))
    if busy:
        raise Busy(f"{busy} What has changed since it began is planned when it has ended.")


def _purpose(campaign_dir: Path) -> str:
    return f"campaign {campaign_dir.name}"
