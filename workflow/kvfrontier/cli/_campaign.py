"""From what a user types to the folder of a campaign's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvfrontier.errors import ConfigError, KVFrontierError
from kvfrontier.plan.project import Project, declared_name, is_name

if TYPE_CHECKING:
    import pyarrow as pa

    from kvfrontier.plan.disk import PlanIndex
    from kvfrontier.run.estimate import Estimate
    from kvfrontier.store.standing import Standing


def results_of(name_or_path: str | None) -> Path:
    """Folder of the campaign's results; a name that only has results (its file is gone) is fine too."""
    project = Project.find()
    try:
        return project.campaign_dir(declared_name(project.campaign_file(name_or_path)))
    except ConfigError:
        if name_or_path and has_results(project, name_or_path):
            return project.campaign_dir(name_or_path)
        raise


def has_results(project: Project, name: str) -> bool:
    """Whether a campaign of this name was once planned."""
    return is_name(name) and (project.results / name / "plan").is_dir()


class Prepared(NamedTuple):
    """A plan that is up to date on disk, and what is known of each of its cells, in its order."""

    index: PlanIndex
    cells: pa.Table
    standings: list[Standing]
    reasons: list[str]
    costs: list[Estimate]
    damaged: list[str]


def prepared(name_or_path: str | None) -> Prepared:
    """Plan a campaign and compare it with the store: where its cells stand, why, and what measuring them would cost."""
    from kvfrontier.plan.disk import prepare, read_cells
    from kvfrontier.run.estimate import estimates
    from kvfrontier.store.running import keep_plan_of_run
    from kvfrontier.store.standing import standings
    from kvfrontier.store.why import in_words

    project = Project.find()
    index = prepare(project, name_or_path, keep_plan_of_run)
    cells = read_cells(index.campaign_dir)
    found, damaged = standings(cells, index.campaign_dir, index.max_attempts, project.settings.fingerprint.ignore)
    reasons = in_words(cells, found, index.campaign_dir)
    return Prepared(index, cells, found, reasons, estimates(cells, index.campaign_dir, project), damaged)


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
