"""From what a user types to the folder of a campaign's results."""

from __future__ import annotations

from pathlib import Path

from kvfrontier.errors import ConfigError
from kvfrontier.plan.project import Project, declared_name


def results_of(name_or_path: str | None) -> Path:
    """Folder of the campaign's results; a name that only has results (its file is gone) is fine too."""
    project = Project.find()
    try:
        return project.campaign_dir(declared_name(project.campaign_file(name_or_path)))
    except ConfigError:
        if name_or_path and (project.results / name_or_path / "plan").is_dir():
            return project.campaign_dir(name_or_path)
        raise
