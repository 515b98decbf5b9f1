"""Real Snakemake, real Ray, real store, on a simulated model: what runs, what does not, and what is told."""

import os
import subprocess

import pytest
from kvfrontier.store.parts import list_parts
from kvfrontier.store.rows import read_table
from workspace import Workspace

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(300)]
NOTHING = "Nothing to be done"


def nap(**settings: object) -> dict:
    return {"name": "nap", **settings}


@pytest.fixture
def space(tmp_path):
    return Workspace(tmp_path)


def test_a_campaign_runs_from_nothing_to_its_report_and_then_nothing_runs(space):
    axes = {
        "strategy": ["full", {"name": "streaming_llm", "budget": [0.25]}],
        "workload": [{"name": "speed", "text": "generated", "output_tokens": 4, "repeats": 1}],
        "workload.context_tokens": [64, 128],
    }
    space.campaign(axes)
    first = space.snakemake()
    assert first.returncode == 0, first.stdout
    assert (space.results / "report.html").exists() and (space.results / "trial.duckdb").exists()
    assert (space.results / "verdict.txt").read_text() == "4 ok\n"
    assert not list((space.results / "cells").glob("*/*.parquet")), "rows were not folded"
    assert NOTHING in space.snakemake().stdout

    axes["strategy"][1]["budget"] = [0.25, 0.5]
    space.campaign(axes)
    second = space.measure_all()
    assert second.returncode == 0, second.stdout
    assert space.statuses() == {("ok", 1): 6}
    log = next(
        path for path in (space.results / "logs" / "measure").glob("*.log") if "4 cells are stored" in path.read_text()
    )
    assert "2 to measure" in log.read_text()


def test_failed_cells_are_rows_that_get_one_more_try_and_the_others_finish(space):
    endings = [nap(ending=ending) for ending in ("ok", "error", "oom", "nan", "negative", "die", "once")]
    space.campaign({"workload": endings})
    first = space.snakemake()
    assert first.returncode != 0
    assert "Traceback" not in first.stdout and "ValueError: no such luck" in first.stdout and "log:" in first.stdout
    assert (space.results / "report.html").exists(), "failed cells must not cost the report"
    rows, _ = read_table(space.results, ["status", "reason_class", "reason_bytes", "reason_detail", "provenance"])
    found = {row["reason_class"]: row for row in rows.to_pylist()}
    assert {name: row["status"] for name, row in found.items() if name} == {
        "ValueError": "error", "RuntimeError": "oom", "ImpossibleValue": "error", "WorkerDied": "error",
    }  # fmt: skip
    assert found["RuntimeError"]["reason_bytes"] == 4096
    assert "raise error" in found["ValueError"]["reason_detail"]
    assert space.statuses() == {("ok", 1): 3, ("error", 1): 3, ("oom", 1): 1}
    assert space.naps_taken()["die 1 0"] == 2 and space.naps_taken()["once 1 0"] == 2

    assert space.snakemake().returncode != 0
    assert space.statuses() == {("ok", 1): 3, ("error", 1): 3, ("oom", 1): 1, ("error", 2): 3}
    taken = space.naps_taken()
    third = space.snakemake()
    assert third.returncode != 0 and "had their last attempt" in third.stdout
    assert space.naps_taken() == taken, "a final failure was tried again"


def test_a_damaged_or_deleted_part_is_shown_by_a_dry_run_and_only_its_cells_are_measured_again(space):
    space.campaign({"workload": [nap()], "seed": [0, 1, 2, 3]}, shard={"max_cells": 2})
    assert space.measure_all().returncode == 0
    shards = [shard.name for shard in space.index().shards]
    parts = list_parts(space.results)
    assert len(shards) == len(parts) == 2
    parts[0].write_bytes(parts[0].read_bytes()[:-100])
    again = space.snakemake("-n", "results/trial/trial.duckdb").stdout
    assert sum(f"ledgers/{name}" in again or name in again for name in shards) >= 1
    assert "measure" in again and NOTHING not in again
    assert space.measure_all().returncode == 0
    assert sorted(space.naps_taken().values()) == [1, 1, 2, 2]
    assert space.statuses() == {("ok", 1): 4}
    list_parts(space.results)[0].unlink()
    assert space.measure_all().returncode == 0
    assert space.naps_taken().total() == 8 and space.statuses() == {("ok", 1): 4}
    assert NOTHING in space.measure_all().stdout


def test_a_slow_cell_becomes_a_timeout_row_and_the_rest_goes_on(space):
    space.campaign({"workload": [nap(seconds=60.0, batch_size=2), nap()], "seed": [0]}, timeout_s=8, max_attempts=1)
    assert space.measure_all().returncode == 0
    assert space.statuses() == {("ok", 1): 1, ("timeout", 1): 1}
    assert NOTHING in space.measure_all().stdout


def test_config_errors_are_told_in_words_before_anything_runs(space):
    space.campaign({"workload": [nap(second=1.0)]})
    told = space.snakemake()
    assert told.returncode != 0
    assert "Traceback" not in told.stdout and "second" in told.stdout and "campaigns/trial.yaml" in told.stdout


def test_planned_impossible_cells_become_rows_and_start_no_ray(space):
    axes = {"workload": [{"name": "speed", "text": "generated"}], "workload.context_tokens": [64, 9000]}
    space.campaign(axes, shard={"max_cells": 1})
    space.snakemake("-n")
    shard = next(shard for shard in space.index().shards if not shard.runnable)
    told = space.run("kvfrontier", "measure", "trial", shard.name)
    assert told.returncode == 0, told.stdout
    assert space.statuses() == {("unsupported", 1): 1}
    assert "to measure" not in (space.results / "logs" / "measure" / f"{shard.name}.log").read_text()


@pytest.mark.parametrize(("options", "words"), [("size=256k", "full"), ("size=8m,ro", "read-only")])
def test_a_full_or_read_only_disk_is_named(space, options, words):
    space.campaign({"workload": [nap()], "seed": list(range(4))})
    disk = space.root / "results"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        missing = f"no small or read-only disk can be mounted here (needs root): {mounted.stderr.strip()}"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    try:
        if words == "full":
            (disk / "ballast").write_bytes(b"x" * 200 * 1024)
        told = space.measure_all()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert told.returncode != 0
    assert words in told.stdout.lower() or "no space" in told.stdout.lower()
    assert "Traceback" not in told.stdout
