"""A campaign file, read and checked: everything that is wrong with it is found before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from kvfrontier.errors import ConfigError, Problem
from kvfrontier.plan.against import read_against
from kvfrontier.plan.axes import read_axes
from kvfrontier.plan.catalog import DataSources, Models, load_data, load_devices, load_models
from kvfrontier.plan.choices import Choices, read_choices
from kvfrontier.plan.constraints import Constraint, read_constraints
from kvfrontier.plan.device import Device
from kvfrontier.plan.document import Document, read_document
from kvfrontier.plan.problems import document_problems
from kvfrontier.plan.project import Project, declared_name, is_name
from kvfrontier.plan.shape import CampaignShape

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Campaign:
    """A valid campaign with the catalogs it was checked against."""

    name: str
    path: Path
    document: Document
    shape: CampaignShape
    choices: Choices
    constraints: tuple[Constraint, ...]
    models: Models
    devices: Mapping[str, Device]
    data: DataSources
    against: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """One line for people."""
        return self.shape.description

    @property
    def max_cells(self) -> int:
        """Cells in a shard at most."""
        return self.shape.shard.max_cells

    @property
    def workers(self) -> int | None:
        """Engine processes at once in one job; None: as the machine allows."""
        return self.shape.shard.workers

    @property
    def nodes(self) -> int:
        """Nodes of one Slurm job."""
        return self.shape.shard.nodes

    @property
    def timeout_s(self) -> float:
        """Seconds a cell may run."""
        return self.shape.timeout_s

    @property
    def max_attempts(self) -> int:
        """Attempts before an error or a timeout is final."""
        return self.shape.max_attempts


def load_campaign(project: Project, name_or_path: str | Path | None = None) -> Campaign:
    """Read and check a campaign and the catalogs it names. Raises one ConfigError that holds every problem."""
    path = project.campaign_file(name_or_path)
    document = read_document(path, project.label(path))
    problems: list[Problem] = []
    models = _collect(problems, lambda: load_models(project))
    devices = _collect(problems, lambda: load_devices(project))
    data = _collect(problems, lambda: load_data(project))
    shape = None
    try:
        shape = CampaignShape.model_validate(document.data)
    except ValidationError as error:
        problems += document_problems(document, error, CampaignShape)
    name = declared_name(path)
    problems += _name_problems(project, document, path, name)
    axes, found = read_axes(document)
    problems += found
    choices, found = read_choices(document, axes, models, devices)
    problems += found
    constraints, found = read_constraints(document, choices, {"model": models, "device": devices})
    problems += found
    against, found = read_against(document, shape.against if shape else (), choices.options["strategy"])
    problems += found
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return Campaign(name, path, document, shape, choices, tuple(constraints), models, devices, data, against)


def _collect(problems: list[Problem], load: Callable[[], T]) -> T | None:
    try:
        return load()
    except ConfigError as error:
        problems += error.problems
        return None


def _name_problems(project: Project, document: Document, path: Path, name: Any) -> list[Problem]:
    """The name must be this file's alone: results are kept under it."""
    problems = []
    if "name" not in document.data and not is_name(name):
        problems.append(document.problem("name", name, "a `name:` of letters, digits, . _ -: the file's name is none"))
    names = project.campaign_names()
    for other, other_name in names.items():
        if other_name.lower() == name.lower() and other.resolve() != path.resolve():
            expected = f"a name of its own: {project.label(other)} is called so too, and results are kept by name"
            problems.append(document.problem("name", name, expected))
    return problems
