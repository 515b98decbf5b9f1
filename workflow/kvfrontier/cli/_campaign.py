"""From what a user types to the folder of a campaign's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvfrontier.errors import ConfigError, KVFrontierError
from kvfrontier.plan.project import Project, declared_name, is_name


def results_of(name_or_path: str | None) -> Path:
    """Folder of the campaign's results; a name that only has results (its file is gone) is fine too."""
    project = Project.find()
    try:
        return project.campaign_dir(declared_name(project.campaign_file(name_or_path)))
    except ConfigError:
        if name_or_path and is_name(name_or_path) and (project.results / name_or_path / "plan").is_dir():
            return project.campaign_dir(name_or_path)
        raise


def estimator(campaign_dir: Path) -> Callable[[], Sequence[float] | None]:
    """Asks how many seconds each planned cell takes (see `store.progress.Estimator`)."""

    def estimate() -> list[float] | None:
        from kvfrontier.plan.disk import read_cells
        from kvfrontier.run.estimate import estimates

        try:
            found = estimates(read_cells(campaign_dir), campaign_dir, Project.find())
        except KVFrontierError:  # a catalog that is being edited: no reason to answer nothing
            return None
        return [item.seconds for item in found]

    return estimate
