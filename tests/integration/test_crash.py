"""`kill -9` of any process of a run: the next run just works, nothing is lost, nothing is counted twice."""

import os
import signal
import subprocess

import pytest
from workspace import Workspace, wait_until

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(300)]
TARGET = "results/trial/trial.duckdb"
CELLS = 10
WORKERS = 2


@pytest.fixture
def running(tmp_path):
    """A campaign that stands still in the middle of its cells: some are stored, two (a worker each) have begun."""
    space = Workspace(tmp_path)
    space.campaign({"workload": [{"name": "nap"}], "seed": list(range(CELLS))})
    space.hold_after(3)
    process = space.start(TARGET)

    def stands_still() -> bool:
        started = space.naps_taken().total()
        return started >= 4 and started - space.statuses().total() == WORKERS

    wait_until(stands_still, 150, "some cells are stored and the others wait")
    yield space, process
    for pid in space.processes(""):
        os.kill(pid, signal.SIGKILL)
    process.wait(30)


def finishes(space):
    space.let_go()
    assert space.measure_all().returncode == 0
    assert space.statuses() == {("ok", 1): CELLS}
    assert space.naps_taken().total() <= CELLS + WORKERS


@pytest.mark.parametrize("victim", ["snakemake -s", "kvfrontier measure", "raylet/raylet"])
def test_after_the_death_of_any_process_above_the_workers_none_stays_and_the_next_run_finishes(running, victim):
    space, process = running
    pids = space.processes(victim)
    os.kill(min(pids), signal.SIGKILL)
    process.wait(60)
    wait_until(lambda: not space.processes(""), 20, "every process of the run has ended")
    finishes(space)


def test_a_killed_worker_is_replaced_within_the_run(running):
    space, process = running
    os.kill(space.processes("ray::EngineWorker")[0], signal.SIGKILL)
    space.let_go()
    assert process.wait(150) == 0
    assert space.statuses() == {("ok", 1): CELLS}
    assert space.naps_taken().total() == CELLS + 1


def test_ctrl_c_stops_cleanly_and_keeps_what_was_measured(running):
    space, process = running
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    wait_until(lambda: not space.processes(""), 20, "every process of the run has ended")
    assert space.statuses()["ok", 1] >= 1
    assert "Traceback" not in (space.root / "output.txt").read_text()
    finishes(space)


def test_a_second_run_of_the_same_campaign_is_told_who_holds_it(running):
    space, process = running
    second = space.snakemake(TARGET)
    assert second.returncode != 0
    assert f"already being done by process {process.pid}" in second.stdout
    shard = space.index().shards[0].name
    direct = subprocess.Popen(["kvfrontier", "measure", "trial", shard], env=space.environment, cwd=space.root,
                              stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert "Waiting for it" in direct.stderr.readline()
    space.let_go()
    assert process.wait(150) == 0
    assert direct.wait(60) == 0
    assert space.naps_taken().total() == CELLS, "two drivers measured the same cells"
