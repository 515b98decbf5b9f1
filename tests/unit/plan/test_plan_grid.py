"""What a campaign file's axes become: cells, each once."""

from __future__ import annotations

import pytest
from kvfrontier.errors import ConfigError
from kvfrontier.plan.build import instantiate
from kvfrontier.plan.cell import Cell
from toy_project import labels, with_axes


def test_axes_multiply(toys):
    text = with_axes(strategy="[toy_full, toy_h2o]", workload__batch_size="[1, 2]", seed="[0, 1, 2]")
    assert len(toys.plan(text).cells) == 2 * 2 * 3


def test_a_budget_collapses_on_a_strategy_without_one(toys):
    plan = toys.plan(with_axes(strategy="[toy_full, toy_h2o]", strategy__budget="[0.1, 0.3]"))
    assert [item.cell.strategy.label for item in plan.cells] == [
        "toy_full",
        "toy_h2o(budget=0.1)",
        "toy_h2o(budget=0.3)",
    ]
    assert plan.duplicates == 0
    assert not plan.notes


def test_a_list_inside_a_component_multiplies_and_a_tuple_parameter_takes_it_whole(toys):
    plan = toys.plan(with_axes(strategy="[{name: toy_window, budget: [0.1, 0.2], layers: [1, 2]}]"))
    assert [item.cell.strategy.label for item in plan.cells] == [
        "toy_window(budget=0.1, layers=(1, 2))",
        "toy_window(budget=0.2, layers=(1, 2))",
    ]


def test_a_value_in_a_component_wins_over_an_axis_of_the_campaign(toys):
    plan = toys.plan(with_axes(strategy="[{name: toy_h2o, budget: 0.7}, toy_window]", strategy__budget="[0.1]"))
    assert [item.cell.strategy.label for item in plan.cells] == ["toy_h2o(budget=0.7)", "toy_window(budget=0.1)"]


def test_an_axis_that_every_component_overrides_is_noted(toys):
    plan = toys.plan(with_axes(strategy="[{name: toy_h2o, budget: 0.7}]", strategy__budget="[0.1]"))
    assert any("axes.strategy.budget has no effect" in note for note in plan.notes)


@pytest.mark.parametrize("values", ["[1, 1.0, '1']", "[1.0, 1]", "[0.1, 0.10, 1e-1]", "[0.5, 0.50]"])
def test_spellings_of_one_budget_are_one_cell_and_reported(toys, values):
    plan = toys.plan(with_axes(strategy="[toy_h2o]", strategy__budget=values))
    assert len(plan.cells) == 1
    assert plan.duplicates == values.count(",")
    assert f"{plan.duplicates} cells are given more than once" in " ".join(plan.notes)
    assert "axes.strategy.budget[0]" in " ".join(plan.notes)


def test_the_default_written_out_is_the_same_cell(toys):
    plain = toys.plan(with_axes(strategy="[toy_h2o]")).cells[0]
    written = toys.plan(with_axes(strategy="[{name: toy_h2o, budget: 0.5, recent_tokens: 4.0}]")).cells[0]
    assert plain.cell_id == written.cell_id


def test_a_token_count_is_not_a_share(toys):
    plan = toys.plan(with_axes(strategy="[toy_h2o]", strategy__budget="[1, 64]"))
    assert [item.parameters["strategy"]["budget"] for item in plan.cells] == [1.0, 64]


def test_a_zip_advances_together(toys):
    zipped = "zip:\n  - {workload.batch_size: [1, 4], workload.context_tokens: [512, 128]}\n"
    text = with_axes(workload="[toy_speed]", seed="[0, 1]") + zipped
    shapes = {
        (i.parameters["workload"]["batch_size"], i.parameters["workload"]["context_tokens"])
        for i in toys.plan(text).cells
    }
    assert shapes == {(1, 512), (4, 128)}
    assert len(toys.plan(text).cells) == 4


def test_a_zip_over_two_parts_of_the_cell_pairs_them_and_collapses_where_it_does_not_apply(toys):
    text = with_axes(strategy="[toy_full, toy_h2o]", workload="[toy_speed]")
    text += "zip:\n  - {strategy.budget: [0.1, 0.3], workload.context_tokens: [512, 128]}\n"
    assert sorted(labels(toys.plan(text))) == [
        "toy_full toy_speed(context_tokens=128) 0",
        "toy_full toy_speed(context_tokens=512) 0",
        "toy_h2o(budget=0.1) toy_speed(context_tokens=512) 0",
        "toy_h2o(budget=0.3) toy_speed(context_tokens=128) 0",
    ]
    only_budget = with_axes(strategy="[toy_full, toy_h2o]") + "zip:\n  - {strategy.budget: [0.1, 0.3], seed: [0, 0]}\n"
    plan = toys.plan(only_budget)
    assert len(plan.cells) == 3


def test_two_zips_multiply(toys):
    text = with_axes(strategy="[toy_h2o]")
    text += "zip:\n  - {strategy.budget: [0.1, 0.3], seed: [1, 2]}\n"
    text += "  - {workload.batch_size: [1, 2], workload.repeats: [3, 4]}\n"
    assert len(toys.plan(text).cells) == 4


def test_repeats_reach_the_workloads_that_have_them(toys):
    plan = toys.plan("repeats: 5\n" + with_axes(workload="[{name: toy_speed, context_tokens: 64}, toy_chat]"))
    found = {item.cell.workload.name: item.parameters["workload"].get("repeats") for item in plan.cells}
    assert found == {"toy_speed": 5, "toy_chat": None}


def test_a_device_can_be_an_axis(toys):
    plan = toys.plan(with_axes(device="[cpu, h100]").replace("device: cpu\naxes", "axes"))
    assert [item.cell.device for item in plan.cells] == ["cpu", "h100"]
    assert len(plan.shards) == 2


def test_a_scalar_stands_for_a_list_of_one(toys):
    assert len(toys.plan(with_axes(model="small", engine="toy_engine", seed="3")).cells) == 1


def test_anchors_and_merges_of_yaml_work(toys):
    text = with_axes(strategy="[&base {name: toy_h2o, budget: 0.1}, {<<: *base, recent_tokens: 8}]")
    assert [item.cell.strategy.label for item in toys.plan(text).cells] == [
        "toy_h2o(budget=0.1)",
        "toy_h2o(budget=0.1, recent_tokens=8)",
    ]


def test_words_that_yaml_1_1_takes_for_booleans_stay_words(toys):
    plan = toys.plan(with_axes(strategy="[{name: toy_h2o, decode_evict: off}]"))
    assert plan.cells[0].parameters["strategy"]["decode_evict"] == "off"


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("drop: {strategy: toy_h2o, workload.batch_size: {gt: 1}}", 4),
        ("drop: {strategy: toy_h2o}", 2),
        ("drop: {workload.batch_size: [1, 2]}", 0),
        ("drop: {strategy.budget: {lt: 0.2}}", 4),
        ("drop: {strategy.budget: {ge: 0.1, le: 0.1}}", 4),
        ("drop: {strategy: {ne: toy_full}}", 2),
        ("drop: {seed: {in: [0]}}", 0),
        ("drop: {strategy: {not_in: [toy_full]}}", 2),
        ("require: {strategy.budget: {ge: 0.2}}", 4),
        ("require: {workload.batch_size: 1}", 3),
        ("{require: {workload.batch_size: 1}, when: {strategy: toy_h2o}}", 4),
        ("drop: {strategy.decode_evict: every}", 2),
    ],
)
def test_constraints_leave_out_what_they_say(toys, rule, left):
    text = with_axes(strategy="[toy_full, toy_h2o]", strategy__budget="[0.1, 0.3]", workload__batch_size="[1, 2]")
    text += f"constraints:\n  - {rule}\n"
    if left:
        plan = toys.plan(text)
        assert (len(plan.cells), plan.dropped) == (left, 6 - left)
    else:
        assert "constraints" in toys.problems(text)


def test_a_constraint_without_effect_is_noted(toys):
    plan = toys.plan(with_axes() + "constraints:\n  - drop: {workload.context_tokens: {gt: 4096}}\n")
    assert plan.notes == ("config/campaigns/trial.yaml:8: constraints[0] drops no cell",)


def test_a_requirement_that_nothing_fulfils_is_noted(toys):
    rule = "constraints:\n  - require: {strategy.decode_evict: evry}\n"
    plan = toys.plan(with_axes(strategy="[toy_full, toy_h2o]") + rule)
    assert [item.cell.strategy.name for item in plan.cells] == ["toy_full"]
    assert plan.notes == (
        "config/campaigns/trial.yaml:8: constraints[0].require.strategy.decode_evict is fulfilled by no cell",
    )


def test_cells_can_be_built_and_made_again_from_their_dict(toys):
    for item in toys.plan(with_axes(strategy="[{name: toy_window, layers: [1, 2]}]")).cells:
        assert Cell.from_dict(item.cell.as_dict()) == item.cell
        assert item.cell.cell_id == item.cell_id
        engine, strategy, workload = instantiate(item.cell)
        assert (engine.name, strategy.layers, workload.context_tokens) == ("toy_engine", (1, 2), 512)


def test_too_many_cells_are_refused_before_they_are_made(toys):
    seeds = "[" + ",".join(str(seed) for seed in range(1001)) + "]"
    text = with_axes(seed=seeds, workload__batch_size=seeds.replace("[0,", "[2000,"))
    with pytest.raises(ConfigError, match="1,002,001 cells"):
        toys.plan(text)
