"""`kill -9` of any process of a run: the next run just works, nothing is lost, nothing is counted twice."""

import os
import signal
import subprocess

import pytest
from workspace import Workspace, wait_until

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(580)]
TARGET = "results/trial/trial.duckdb"
CELLS = 10
WORKERS = 2


@pytest.fixture
def space(tmp_path):
    space = Workspace(tmp_path)
    yield space
    for pid in space.processes(""):
        os.kill(pid, signal.SIGKILL)


def start_and_hold(space: Workspace) -> subprocess.Popen[str]:
    """Start, and wait until the run stands still: one cell more is stored, and two (a worker each) have begun."""
    begun, stored = space.naps_taken().total(), space.statuses().total()
    space.hold_after(begun + 1)
    process = space.start(TARGET)

    def stands_still() -> bool:
        return (space.naps_taken().total(), space.statuses().total()) == (begun + 1 + WORKERS, stored + 1)

    wait_until(stands_still, 150, "a cell is stored and the workers wait in the next ones")
    return process


def kill(victim: str):
    return lambda space, process: os.kill(min(space.processes(victim)), signal.SIGKILL)


def ctrl_c(space: Workspace, process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


BLOWS = [kill("snakemake -s"), kill("kvfrontier measure"), kill("raylet/raylet"), ctrl_c]


def test_whatever_ends_a_run_none_of_it_stays_and_the_next_one_goes_on(space):
    """Several rounds of one campaign; in the last one a worker is killed, which is replaced within the run."""
    space.campaign({"workload": [{"name": "nap"}], "seed": list(range(CELLS))})
    for number, blow in enumerate(BLOWS):
        process = start_and_hold(space)
        blow(space, process)
        assert process.wait(60) != 0
        wait_until(lambda: not space.processes(""), 20, f"every process of the run has ended after blow {number}")
        assert space.statuses() == {("ok", 1): number + 1}, "what had finished stays, what had not leaves no row"
    assert "Traceback" not in (space.root / "output.txt").read_text(), "of the run that Ctrl-C ended"

    process = start_and_hold(space)
    begun, stored = space.naps_taken().total(), space.statuses().total()
    os.kill(space.processes("ray::EngineWorker")[0], signal.SIGKILL)
    space.let_go()
    assert process.wait(150) == 0
    assert space.statuses() == {("ok", 1): CELLS}
    assert space.naps_taken().total() == begun + CELLS - stored - WORKERS + 1, "only the killed worker's cell ran twice"


def test_a_second_run_of_the_same_campaign_is_told_who_holds_it(space):
    space.campaign({"workload": [{"name": "nap"}], "seed": list(range(CELLS))})
    process = start_and_hold(space)
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
