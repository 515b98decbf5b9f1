"""Why cells would be measured, in words."""

from __future__ import annotations

import pytest
from kvfrontier.plan import disk
from kvfrontier.store.standing import standings
from kvfrontier.store.why import in_words
from toy_project import ToyProject, planned_cells, store, toy_plugins, with_axes

H2O = "[{name: toy_h2o, budget: %s}]"


@pytest.fixture
def toys(tmp_path):
    with toy_plugins():
        yield ToyProject(tmp_path)


def words(toys: ToyProject, **axes: str) -> list[str]:
    toys.campaign_text(with_axes(**axes))
    index = disk.prepare(toys.project, "trial")
    plan = disk.read_cells(index.campaign_dir)
    found, _ = standings(plan, index.campaign_dir, 2)
    return in_words(plan, found, index.campaign_dir)


def measured(toys: ToyProject, **axes: str) -> None:
    """Store every cell of this campaign."""
    toys.campaign_text(with_axes(**axes))
    index = disk.prepare(toys.project, "trial")
    for cell in planned_cells(index):
        store(index, cell)


def test_before_anything_is_stored_a_cell_is_just_new(toys):
    assert words(toys, seed="[0, 1]") == ["new", "new"]


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"strategy": H2O % 0.3}, "new: strategy toy_h2o with budget=0.3"),
        ({"strategy": "[toy_h2o]"}, "new: strategy toy_h2o with budget=its default"),
        ({"strategy": "[toy_window]"}, "new: strategy toy_window"),
        ({"seed": "[4]"}, "new: strategy toy_h2o with budget=0.3, seed 4"),
        ({"model": "[Qwen/Qwen3-8B]"}, "new: model Qwen/Qwen3-8B"),
        ({"workload": "[{name: toy_speed, context_tokens: 64}]"}, "new: workload toy_speed with context_tokens=64"),
    ],
)
def test_what_no_row_has_yet_is_named(toys, axes, reason):
    measured(toys, strategy=H2O % 0.25)
    if "seed" in axes:
        axes = {"strategy": H2O % 0.3, **axes}
    axes = {"strategy": H2O % 0.25, **axes}
    assert words(toys, **axes) == [reason]


def test_known_values_in_a_new_combination(toys):
    measured(toys, strategy=H2O % 0.25, seed="[0]")
    measured(toys, strategy="[toy_full]", seed="[1]")
    assert words(toys, strategy="[toy_full]", seed="[0]") == ["new: a combination that was not measured yet"]


@pytest.mark.parametrize(
    ("part", "before", "reason"),
    [
        ("strategy_code", "x", "the code of strategy toy_full changed"),
        ("engine_code", "x", "the code of engine toy_engine changed"),
        ("workload_code", "x", "the code of workload toy_speed changed"),
        ("model", "x", "the weights of model small changed"),
    ],
)
def test_a_changed_part_is_named_with_what_it_belongs_to(toys, part, before, reason):
    toys.campaign_text(with_axes())
    index = disk.prepare(toys.project, "trial")
    store(index, planned_cells(index)[0], fingerprint="a" * 32, parts={part: before})
    assert words(toys) == [reason]


def test_a_revision_is_shown_before_and_now(toys):
    entry = "hubbed: {{hub: org/hubbed, revision: {0}}}\n"
    toys.write("models.yaml", entry.format("a" * 40))
    toys.campaign_text(with_axes(model="[hubbed]"))
    index = disk.prepare(toys.project, "trial")
    store(index, planned_cells(index)[0])
    toys.write("models.yaml", entry.format("b" * 40))
    assert words(toys, model="[hubbed]") == ["model hubbed org/hubbed@aaaaaaaa -> org/hubbed@bbbbbbbb"]


def test_two_changes_are_both_named_and_rows_without_a_cell_do_no_harm(toys):
    toys.campaign_text(with_axes(seed="[0, 1]"))
    index = disk.prepare(toys.project, "trial")
    first = planned_cells(index)[0]
    store(index, first, fingerprint="a" * 32, cell="no JSON", parts={"engine_code": "x", "package:pydantic": "1.0"})
    now = first.parts["package:pydantic"]
    told = words(toys, seed="[0, 1]")
    assert told[0] == f"the code of engine toy_engine changed, package pydantic 1.0 -> {now}"
    assert told[1].startswith("new: ")
