"""The config files of the checkout, and the example in their README: they plan."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import kvfrontier
import pytest
from kvfrontier.plan.build import build_plan
from kvfrontier.plan.campaign import load_campaign
from kvfrontier.plan.project import Project

CONFIG = Path(kvfrontier.__file__).parents[2] / "config"


@pytest.mark.parametrize("name", ["default", "smoke"])  # not a user's own ones
def test_a_shipped_campaign_plans_without_unsupported_cells(name):
    project = Project.find()
    plan = build_plan(project, load_campaign(project, name))
    assert plan.campaign == name
    assert all(cell.status is None for cell in plan.cells)


def test_the_campaign_of_the_readme_plans(tmp_path):
    shutil.copytree(CONFIG, tmp_path / "config")
    example = re.search(r"## A campaign\n\n```yaml\n(.*?)```", (CONFIG / "README.md").read_text(), re.DOTALL)[1]
    (tmp_path / "config" / "campaigns" / "mine.yaml").write_text(example)
    project = Project.at(tmp_path)
    plan = build_plan(project, load_campaign(project, "mine"))
    assert len(plan.cells) == (1 + 2 * 2 + 2) * 2 * 2 * 2
