"""Where planned cells stand against stored rows, and why some are stale."""

from __future__ import annotations

import pytest
from kvfrontier.plan import disk
from kvfrontier.store.standing import standings
from toy_project import CAMPAIGN, ToyProject, planned_cells, store, toy_plugins


@pytest.fixture
def trial(tmp_path):
    with toy_plugins():
        toys = ToyProject(tmp_path)
        toys.campaign_text(CAMPAIGN.replace("context_tokens: 512", "context_tokens: [512, 4096]"))
        yield disk.prepare(toys.project, "trial")


def found(index, ignore=()):
    return standings(disk.read_cells(index.campaign_dir), index.campaign_dir, 2, ignore)[0]


def test_without_rows_all_cells_are_new_but_the_impossible(trial):
    assert sorted((item.state, item.reason) for item in found(trial)) == [
        ("measure", "new"),
        ("measure", "new"),
        ("measure", "new"),
        *[("unsupported", "4104 tokens; small has 2048 positions")] * 3,
    ]


def test_rows_of_the_current_fingerprint_are_final_or_tried_again(trial):
    planned = [cell for cell in planned_cells(trial) if not cell.status]
    store(trial, planned[0], "ok")
    store(trial, planned[1], "error", attempt=1)
    store(trial, planned[2], "timeout", attempt=2)
    assert [(item.state, item.reason) for item in found(trial) if item.state != "unsupported"] == [
        ("stored", "ok"),
        ("measure", "tried again after error"),
        ("stored", "timeout"),
    ]


def test_a_stale_cell_names_the_part_that_changed_since_its_newest_row(trial):
    cell = planned_cells(trial)[0]
    store(trial, cell, fingerprint="a" * 32, parts={"package:pydantic": "1.0", "engine_code": "old"}, minutes=1)
    store(trial, cell, fingerprint="b" * 32, parts={"package:pydantic": "1.9", "gone": "x"}, minutes=2)
    stale = found(trial)[0]
    assert (stale.state, stale.reason) == ("measure", "changed: package:pydantic, gone")
    assert stale.changes == {"package:pydantic": ("1.9", cell.parts["package:pydantic"]), "gone": ("x", "(none)")}
    ignoring = found(trial, ["package:*"])[0]
    assert ignoring.reason == "changed: gone"


def test_a_change_of_what_counts_is_called_so(trial):
    store(trial, planned_cells(trial)[0], fingerprint="a" * 32)
    assert found(trial)[0].reason == "changed: which parts count"
