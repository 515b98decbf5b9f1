"""`kvfrontier plan`, `explain` and `schema` as a user meets them."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from kvfrontier.cli import kvfrontier
from kvfrontier.errors import ConfigError, KVFrontierError
from kvfrontier.plan import disk
from toy_project import CAMPAIGN, ToyProject, planned_cells, store, toy_plugins, with_axes


@pytest.fixture
def toys(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.delenv("KVFRONTIER_RESULTS", raising=False)
    with toy_plugins():
        toys = ToyProject(tmp_path)
        toys.campaign_text(CAMPAIGN)
        yield toys


def call(*arguments: str) -> str:
    result = CliRunner().invoke(kvfrontier, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_plan_lists_shards_reasons_and_totals(toys):
    text = call("plan", "trial")
    shard = disk.prepare(toys.project, "trial").shards[0].name
    assert f"{shard}      3           3       0            0  " in text
    assert "3  new: about " in text
    assert re.search(r"3 cells to measure, about [^;]+ \(modelled 3\); 0 stored, 0 unsupported\.", text)
    assert "snakemake --profile profiles/local --config campaign=trial" in text


def test_plan_lists_each_cell_where_there_are_few(toys):
    index = disk.prepare(toys.project, "trial")
    cell = planned_cells(index)[0]
    store(index, cell)
    listed = call("plan", "trial")
    line = next(line for line in listed.splitlines() if line.startswith(cell.cell_id[:8]))
    assert line.endswith("stored: ok")
    assert listed.count("measure: new") == 2
    assert cell.cell_id[:8] not in call("plan", "trial", "--cells", "2")


def test_plan_without_a_name_takes_the_default_campaign(toys):
    toys.write("config.yaml", "campaign: trial\n")
    assert "Campaign trial: 3 cells" in call("plan")


def test_plan_says_when_there_is_nothing_to_do_and_explain_too(toys):
    index = disk.prepare(toys.project, "trial")
    for cell in planned_cells(index):
        store(index, cell)
    assert "Nothing to measure: all 3 cells are stored or unsupported." in call("plan", "trial")
    assert "Nothing changed: all 3 cells of trial are stored." in call("explain", "trial")


def test_plan_as_json_has_every_shard_and_note(toys):
    toys.campaign_text(CAMPAIGN.replace("[0.1, 0.3]", "[0.1, 0.10, 0.3]") + "shard: {max_cells: 1}\n")
    summary = json.loads(call("plan", "trial", "--json"))
    assert (summary["cells"], summary["measure"], summary["duplicates"]) == (3, 3, 1)
    assert [shard["cells"] for shard in summary["shards"]] == [1, 1, 1]
    assert "given more than once" in summary["notes"][0]


def test_explain_names_what_changed_before_and_now(toys):
    index = disk.prepare(toys.project, "trial")
    first = planned_cells(index)[0]
    store(index, first, fingerprint="a" * 32, parts={"package:pydantic": "1.0"})
    text, now = call("explain", "trial"), first.parts["package:pydantic"]
    assert f"1 cell to measure: package pydantic 1.0 -> {now} (about" in text
    assert f"    package:pydantic: 1.0 -> {now}" in text
    assert "2 cells to measure: new: strategy toy_h2o (about" in text
    assert "In all 3 cells to measure, about" in text
    only = json.loads(call("explain", "trial", "--cell", first.cell_id[:8], "--json"))
    assert [group["cells"] for group in only["groups"]] == [1]


def test_explain_names_the_files_whose_code_a_part_is(toys):
    index = disk.prepare(toys.project, "trial")
    cell = planned_cells(index)[1]
    store(index, cell, fingerprint="a" * 32, parts={"strategy_code": "before"})
    text = call("explain", "trial")
    assert "1 cell to measure: the code of strategy toy_h2o changed (about" in text
    assert f"strategy_code: before -> {cell.parts['strategy_code']}" in text
    held = "cache, cache.attention, cache.held, cache.layer, cache.precise, cache.scores"
    acting = "strategies, strategies._toy_scores, strategies.base"
    assert f"code of {held}, {acting}, strategies.toy_h2o" in " ".join(text.split())


def test_the_cost_stands_on_rows_where_there_are_some(toys):
    toys.campaign_text(with_axes(seed="[0, 1, 2]"))
    index = disk.prepare(toys.project, "trial")
    first = planned_cells(index)[0]
    store(index, first, fingerprint="a" * 32, parts={"device": "another"}, wall_s=7200.0)
    store(index, first, fingerprint="b" * 32, parts={"device": "another"}, minutes=1, wall_s=450.0)
    summary = json.loads(call("plan", "trial", "--json"))
    assert summary["cost"] == {
        "cells": 3,
        "device_hours": pytest.approx(3 * 450 / 3600),
        "basis": {"measured": 1, "similar": 2, "modelled": 0},
    }
    assert summary["shards"][0]["cost"] == summary["cost"]
    changed = summary["reasons"]["the declared rates of device cpu changed"]
    assert (changed["cells"], changed["device_hours"]) == (1, pytest.approx(450 / 3600))
    assert json.loads(call("explain", "trial", "--json"))["cost"] == summary["cost"]
    text = call("plan", "trial")
    assert "3 cells to measure, about 0.375 device hours (measured 1, similar 2); 0 stored" in text
    assert re.search(
        r"^ +2  new: seed [12], seed|^ +1  new: seed 1: about 0.125 device hours \(similar 1\)$", text, re.M
    )


def test_explain_refuses_a_cell_that_is_not_planned(toys):
    result = CliRunner().invoke(kvfrontier, ["explain", "trial", "--cell", "zz"])
    assert result.exit_code == 2
    assert "starts with 'zz'" in result.output


def test_a_bad_campaign_stops_plan_with_all_problems(toys):
    toys.campaign_text(CAMPAIGN.replace("toy_full", "toy_ful").replace("0.1", "1.5"))
    with pytest.raises(ConfigError, match=r"toy_ful(.|\n)*1\.5"):
        call("plan", "trial")


def test_schema_prints_one_or_checks_all(toys):
    assert json.loads(call("schema", "campaign"))["properties"]["axes"]
    result = CliRunner().invoke(kvfrontier, ["schema", "campain"])
    assert "Did you mean 'campaign'?" in result.output


def test_a_misspelt_command_is_answered_with_the_nearest():
    result = CliRunner().invoke(kvfrontier, ["fronteer"])
    assert result.exit_code == 2
    assert "Did you mean 'frontier'?" in result.output


def test_a_shard_that_is_none_leaves_no_file_behind(toys):
    disk.prepare(toys.project, "trial")
    before = sorted(toys.root.rglob("*"))
    with pytest.raises(KVFrontierError, match="has no shard"):
        call("measure", "trial", "../../../gone")
    assert sorted(toys.root.rglob("*")) == before
