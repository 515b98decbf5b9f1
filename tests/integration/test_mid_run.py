"""A run that stands still in its middle: query, report, watch and log tell the same numbers; also after `kill -9`."""

import json
import os
import signal
import subprocess

import pytest
from workspace import Workspace, wait_until

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(580)]
STORED, WORKERS, CELLS = 9, 2, 12
MID_RUN = "9 of 12 cells, 2 in flight, 1 left"


def kvfrontier(space: Workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command, its output and its errors apart."""
    return subprocess.run(["kvfrontier", *arguments], env=space.environment, cwd=space.root, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=120)  # fmt: skip


def frame(space: Workspace) -> dict:
    return json.loads(kvfrontier(space, "watch", "trial", "--json").stdout)


def by_status(space: Workspace, *options: str) -> dict[str, int]:
    """The query of everybody, and what it says on stderr (`""` as a key)."""
    sql = "SELECT status, count(*) AS n FROM cells GROUP BY ALL"
    done = kvfrontier(space, "query", "trial", sql, "--format", "json", *options)
    return {row["status"]: row["n"] for row in json.loads(done.stdout)} | {"": done.stderr}


@pytest.fixture
def standing_still(tmp_path):
    """Nine of twelve cells are stored, half of them errors, two wait in their workers, nothing is published."""
    space = Workspace(tmp_path)
    space.campaign({"workload": [{"name": "nap", "ending": ["ok", "error"]}], "seed": list(range(CELLS // 2))})
    space.hold_after(STORED)
    process = space.start("results/trial/trial.duckdb")
    wait_until(
        lambda: space.naps_taken().total() == STORED + WORKERS and space.statuses().total() == STORED,
        200,
        "nine cells are stored and two wait",
    )
    yield space, process
    for pid in space.processes(""):
        os.kill(pid, signal.SIGKILL)
    process.wait(30)


def test_every_view_shows_a_run_as_it_is_and_what_a_killed_one_left(standing_still):
    space, process = standing_still
    published, beats = space.results / "trial.duckdb", space.results / "running"

    wait_until(lambda: frame(space)["in_flight"] == WORKERS, 20, "the next heartbeat")
    seen = frame(space)
    assert (seen["cells"], seen["done"], seen["in_flight"], seen["left"]) == (CELLS, STORED, WORKERS, 1)
    assert seen["by_status"] == {status: count for (status, _), count in space.statuses().items()}
    (shard,) = seen["shards"]
    assert shard["is_running"] and shard["host"] and shard["pid"] == space.driver()
    assert seen["seconds_left"] > 0
    assert len(seen["cells_in_flight"]) == WORKERS and all("nap" in cell["label"] for cell in seen["cells_in_flight"])
    text = kvfrontier(space, "watch", "trial", "--once").stdout
    assert MID_RUN in text and "ValueError: no such luck" in text and "\x1b" not in text

    answer = by_status(space)
    assert f"trial: {MID_RUN}" in answer[""] and "nothing is published yet" in answer[""]
    errors = seen["by_status"]["error"]
    assert (answer["ok"], answer["error"], answer["planned"]) == (STORED - errors, errors, WORKERS + 1)
    page = space.root / "so_far.html"
    assert kvfrontier(space, "report", "trial", "--out", str(page)).returncode == 0
    assert MID_RUN in page.read_text() and "Being measured" in page.read_text()
    assert not published.exists(), "what Snakemake makes was made behind its back"

    failed = seen["failures"][0]
    told = kvfrontier(space, "log", failed["cell_id"][:12], "trial").stdout
    assert "Traceback" in told and "raise error" in told and f"{failed['cell_id']} error" in told
    assert failed["cell_id"][:12] in kvfrontier(space, "log", "trial").stdout

    os.kill(space.driver(), signal.SIGKILL)
    process.wait(60)
    wait_until(lambda: not space.processes(""), 20, "every process of the run has ended")
    assert list(beats.glob("*.json")), "a killed driver cannot clean up"
    seen = frame(space)
    assert (seen["running_shards"], seen["in_flight"]) == (0, 0)
    assert (seen["done"], seen["left"]) == (STORED - errors, CELLS - STORED + errors), "failed cells are tried again"
    assert "nothing is being measured now" in by_status(space, "--fresh")[""]

    space.let_go()
    assert space.run(*space.command("results/trial/trial.duckdb", seconds=300)).returncode == 0
    assert not list(beats.iterdir())
    answer = by_status(space)
    assert answer == {"ok": CELLS // 2, "error": CELLS // 2, "": ""}
    assert published.exists() and not (space.results / "trial.live.duckdb").exists()
    ended = kvfrontier(space, "watch", "trial")
    assert ended.returncode == 0 and "12 of 12 cells" in ended.stdout
    assert kvfrontier(space, "report", "trial", "--out", str(page)).returncode == 0
    assert "Being measured" not in page.read_text() and "Not finished" not in page.read_text()
