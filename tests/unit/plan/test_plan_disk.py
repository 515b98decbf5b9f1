"""The plan on disk: equal to the plan in memory, reused while nothing changed, made again when something did."""

from __future__ import annotations

import json
import os

import pyarrow.parquet as pq
import pytest
from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.plan import disk, table
from kvfrontier.plan.against import KEY, stored_against
from toy_project import CAMPAIGN, with_axes

MORE = CAMPAIGN + "  seed: [0, 1, 2]\nshard: {max_cells: 2}\n"


def plain(cell):
    """A planned cell with lists for tuples, as it comes back from JSON."""
    parameters = json.loads(json.dumps(cell.parameters))
    return (
        cell.cell,
        cell.cell_id,
        cell.fingerprint,
        cell.parts,
        parameters,
        cell.task,
        cell.source,
        cell.status,
        cell.reason,
    )


def test_what_is_read_is_what_was_planned(toys):
    text = MORE.replace("toy_full,", "toy_full, {name: toy_window, layers: [1, 2]},").replace(
        "context_tokens: 512", "context_tokens: [512, 4096]"
    )
    plan = toys.plan(text)
    index = disk.prepare(toys.project, "trial")
    assert index.shards == plan.shards
    assert (index.campaign, index.models, index.data, index.notes) == ("trial", ("small",), (), plan.notes)
    for shard in index.shards:
        assert [plain(cell) for cell in disk.read_shard(index.campaign_dir, shard.name)] == [
            plain(cell) for cell in plan.members[shard.name]
        ]
    assert disk.read_index(index.campaign_dir) == index


def test_the_table_has_a_column_for_each_axis(toys):
    toys.campaign_text(
        CAMPAIGN.replace("[0.1, 0.3]", "[0.5, 64]").replace("context_tokens: 512", "context_tokens: 512, batch_size: 4")
    )
    cells = disk.read_cells(disk.prepare(toys.project, "trial").campaign_dir)
    assert cells.schema.equals(table.PLAN)
    row = cells.to_pylist()[1]
    assert json.loads(row["cell"])["strategy"] == {"name": "toy_h2o"}
    assert dict(row["parts"])["cell"] == row["cell_id"]
    expected = {
        "model": "small",
        "engine": "toy_engine",
        "device": "cpu",
        "strategy": "toy_h2o",
        "strategy_label": "toy_h2o(budget=0.5)",
        "budget": 0.5,
        "workload": "toy_speed",
        "task": "toy_speed",
        "batch_size": 4,
        "context_tokens": 512,
        "output_tokens": 8,
        "seed": 0,
        "source": "measured",
        "status": None,
        "reason": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert cells.column("budget").to_pylist() == [None, 0.5, 64.0]


@pytest.fixture
def prepared(toys, monkeypatch):
    """Prepares the plan and says whether that made it again."""
    toys.campaign_text(MORE)
    made = []
    real = disk.build_plan
    monkeypatch.setattr(disk, "build_plan", lambda *args: made.append(1) or real(*args))

    def prepare() -> bool:
        made.clear()
        disk.prepare(toys.project, "trial")
        return bool(made)

    assert prepare()
    return prepare


def test_an_unchanged_plan_is_reused(prepared, toys):
    assert not prepared()
    os.utime(toys.root / "config" / "campaigns" / "trial.yaml")  # a checkout changes times, not bytes
    assert not prepared()


@pytest.mark.parametrize(
    "change",
    [
        lambda toys: toys.campaign_text(MORE + "timeout_s: 5\n"),
        lambda toys: toys.campaign_text(MORE, "other"),
        lambda toys: toys.write("config.yaml", "fingerprint: {ignore: [data]}\n"),
        lambda toys: toys.write("devices.yaml", "cpu: {kind: cpu, flops_per_s: 1e12}\n"),
        lambda toys: (toys.root / "results" / "trial" / "plan" / "index.json").unlink(),
        lambda toys: (toys.root / "results" / "trial" / "plan" / "cells.parquet").unlink(),
        lambda toys: (toys.root / "results" / "trial" / "plan" / "index.json").write_text("{"),
        lambda toys: (toys.root / "results" / "trial" / "plan" / "index.json").write_text("{}"),
        lambda toys: (toys.root / "results" / "trial" / "plan" / "cells.parquet").write_text("PAR1"),
    ],
    ids=[
        "campaign",
        "new campaign",
        "config",
        "devices",
        "no index",
        "no cells",
        "bad index",
        "old index",
        "bad cells",
    ],
)
def test_a_changed_input_or_a_damaged_plan_makes_it_again(prepared, toys, change):
    change(toys)
    assert prepared()


def test_a_changed_source_makes_it_again(prepared, toys, tmp_path):
    import kvfrontier.workloads

    extra = tmp_path / "more"
    extra.mkdir()
    kvfrontier.workloads.__path__.append(str(extra))
    try:
        (extra / "toy_more.py").write_text("A = 1\n")
        assert prepared()
        assert not prepared()
    finally:
        kvfrontier.workloads.__path__.remove(str(extra))


def test_a_changed_package_makes_it_again(prepared, monkeypatch):
    monkeypatch.setattr(disk, "package_version", lambda name: "0")
    assert prepared()


def test_a_changed_model_folder_makes_it_again(toys):
    from test_plan_catalog import write_model

    folder = write_model(toys.root / "own")
    toys.write("models.yaml", "small: {folder: own}\n")
    toys.campaign_text(MORE)
    before = disk.prepare(toys.project, "trial").shards
    assert disk.prepare(toys.project, "trial").shards == before
    (folder / "model.safetensors").write_bytes((3).to_bytes(8, "little") + b"{ }")
    assert {shard.name for shard in disk.prepare(toys.project, "trial").shards}.isdisjoint(
        shard.name for shard in before
    )


def test_cells_of_another_plan_are_not_taken_for_this_ones(prepared, toys):
    """A crash after cells.parquet was renamed and before index.json was leaves such a pair."""
    folder = toys.root / "results" / "trial" / "plan"
    index = (folder / "index.json").read_bytes()
    toys.campaign_text(MORE.replace("0.3", "0.4"))
    assert prepared()
    (folder / "index.json").write_bytes(index)
    toys.campaign_text(MORE)
    assert prepared()


def test_a_row_group_holds_whole_shards(toys, monkeypatch):
    monkeypatch.setattr(table, "ROWS_IN_GROUP", 3)
    toys.campaign_text(MORE)
    index = disk.prepare(toys.project, "trial")
    file = pq.ParquetFile(index.campaign_dir / "plan" / "cells.parquet")
    groups = [set(file.read_row_group(number)["shard"].to_pylist()) for number in range(file.num_row_groups)]
    assert len(groups) == 3
    assert sum(len(group) for group in groups) == len(index.shards) == 5


def test_a_shard_that_the_plan_no_longer_has_is_an_error_with_the_nearest(toys):
    toys.campaign_text(CAMPAIGN)
    index = disk.prepare(toys.project, "trial")
    with pytest.raises(KVFrontierError, match="Did you mean 'small"):
        disk.read_shard(index.campaign_dir, index.shards[0].name[:-1])
    with pytest.raises(Unavailable, match="kvfrontier plan"):
        disk.read_shard(toys.root / "results" / "none", "x")
    with pytest.raises(Unavailable, match="kvfrontier plan"):
        disk.read_index(toys.root / "results" / "none")


def test_results_that_cannot_be_written_are_explained(toys):
    toys.campaign_text(CAMPAIGN)
    (toys.root / "results").write_text("a file where a folder should be")
    with pytest.raises(Unavailable, match="KVFRONTIER_RESULTS"):
        disk.prepare(toys.project, "trial")


def test_no_partial_files_are_left(toys):
    toys.campaign_text(CAMPAIGN)
    folder = disk.prepare(toys.project, "trial").campaign_dir / "plan"
    assert sorted(path.name for path in folder.iterdir()) == ["cells.parquet", "index.json"]


def test_a_campaign_by_path_is_found_and_results_can_go_elsewhere(toys, monkeypatch, tmp_path):
    path = toys.write("elsewhere/mine.yaml", CAMPAIGN)
    monkeypatch.setenv("KVFRONTIER_ROOT", str(toys.root))
    monkeypatch.setenv("KVFRONTIER_RESULTS", str(tmp_path / "out"))
    project = disk.Project.find()
    assert disk.prepare(project, path).campaign_dir == tmp_path / "out" / "mine"
    assert disk.prepare(project, "config/elsewhere/mine.yaml").campaign == "mine"


def test_what_a_campaign_compares_with_lies_beside_its_cells_and_makes_none_outdated(toys):
    plain_plan = toys.plan(CAMPAIGN)
    plan = toys.plan(CAMPAIGN + "against: [toy_h2o, {name: toy_full}, toy_h2o]\n")
    assert plan.against == ("toy_h2o", "toy_full")
    assert [cell.fingerprint for cell in plan.cells] == [cell.fingerprint for cell in plain_plan.cells]
    index = disk.prepare(toys.project, "trial")
    assert stored_against(index.campaign_dir) == ["toy_h2o", "toy_full"]


def test_parts_of_the_parameters_name_one_of_several_variants(toys):
    axes = with_axes(strategy="[toy_h2o, {name: toy_h2o, decode_evict: off}, {name: toy_window, layers: [1, 2]}]")
    entries = "against: [toy_h2o, {name: toy_h2o, decode_evict: off}, {layers: [1, 2], name: toy_window}]\n"
    assert toys.plan(axes + entries).against == ("toy_h2o", "toy_h2o(decode_evict=off)", "toy_window(layers=(1, 2))")


@pytest.mark.parametrize("content", [b"[1]", b"{", b'["a\\u0007"]', b"\xff"])
def test_nonsense_beside_the_cells_is_no_reference(toys, content):
    toys.plan(CAMPAIGN)
    folder = disk.prepare(toys.project, "trial").campaign_dir
    cells = folder / "plan" / "cells.parquet"
    schema = pq.read_table(cells)
    pq.write_table(schema.replace_schema_metadata({KEY: content}), cells)
    assert stored_against(folder) == [] == stored_against(folder / "nowhere")
