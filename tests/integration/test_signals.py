"""Whoever gets whichever signal at whichever moment: a clean stop within seconds, and the next run goes on."""

import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from workspace import Workspace, wait_until

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(500)]
note = logging.getLogger(__name__).warning
TARGET = "results/trial/trial.duckdb"
WORKERS = 2
STOPS_IN_S = 10.0
PATIENCE_S = 40.0
"""Far more: machines that run tests may have much else to do. What it took is logged."""


def gone(space, since_s):
    """Wait until no process of the run is left, and say how long that took."""
    wait_until(lambda: not space.processes(""), PATIENCE_S, "every process of the run has ended")
    return f"{time.monotonic() - since_s:.1f} s (goal {STOPS_IN_S:g})"


def folders():
    """Folders of drivers, other users' and other runs' too."""
    return set(Path("/tmp").glob(f"kvf-{os.getuid()}-*"))


def to_snakemake_alone(space, process, number):
    os.kill(process.pid, number)


def to_all_of_the_group(space, process, number):
    os.killpg(process.pid, number)


def to_the_driver_twice(space, process, number):
    pid = space.driver()
    os.kill(pid, number)
    time.sleep(0.3)
    os.kill(pid, number)


def test_in_the_middle_of_a_cell(tmp_path):
    """Several rounds of one campaign: each is stopped another way and goes on where the one before was stopped."""
    space = Workspace(tmp_path)
    rounds = [
        (to_snakemake_alone, signal.SIGTERM),
        (to_snakemake_alone, signal.SIGINT),
        (to_all_of_the_group, signal.SIGTERM),
        (to_the_driver_twice, signal.SIGINT),
    ]
    cells = 3 * len(rounds)
    space.campaign({"workload": [{"name": "nap"}], "seed": list(range(cells))})
    for number, (send, kind) in enumerate(rounds):
        begun, stored = space.naps_taken().total(), space.statuses().total()
        space.hold_after(begun + 1)
        process = space.start(TARGET)
        wait_until(lambda begun=begun: space.naps_taken().total() == begun + 1 + WORKERS, 200, "the workers are busy")
        before = folders()
        since_s = time.monotonic()
        send(space, process, kind)
        assert process.wait(PATIENCE_S) != 0
        note(f"{number} {send.__name__} {kind.name}: {gone(space, since_s)}")
        assert space.statuses() == {("ok", 1): stored + 1}, "what had finished stays, what had not leaves no row"
        told = (space.root / "output.txt").read_text()
        assert "Traceback" not in told and "run again to go on" in told
        assert before - folders(), "the folder of Ray is gone"
    space.let_go()
    assert space.measure_all().returncode == 0
    assert space.statuses() == {("ok", 1): cells}
    assert space.naps_taken().total() == cells + len(rounds) * WORKERS


def test_while_a_worker_is_stuck_in_native_code_and_then_its_time_is_up(tmp_path):
    """The worker holds the interpreter's lock and ignores SIGTERM: only SIGKILL ends it."""
    space = Workspace(tmp_path)
    space.campaign({"workload": [{"name": "nap", "ending": "stuck"}]}, timeout_s=600)
    process = space.start(TARGET)
    wait_until(lambda: space.naps_taken().total() == 1, 200, "the worker is stuck")
    since_s = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE_S) != 0
    note(f"stuck: {gone(space, since_s)}")
    space.campaign({"workload": [{"name": "nap", "ending": "stuck"}, {"name": "nap"}]}, timeout_s=4)
    done = space.measure_all()
    assert done.returncode == 0, done.stdout
    assert space.statuses() == {("timeout", 1): 1, ("ok", 1): 1}
    assert not space.processes("ray::EngineWorker"), "the stuck worker outlived its run"


def test_during_the_start_of_ray(tmp_path):
    space = Workspace(tmp_path)
    space.campaign({"workload": [{"name": "nap"}]})
    space.hold_after(0)
    for moment in ("kvfrontier.run.guard", "gcs_server", "raylet/raylet"):
        process = space.start(TARGET)
        wait_until(lambda moment=moment: space.processes(moment), 100, f"{moment} is there")
        since_s = time.monotonic()
        to_the_driver_twice(space, process, signal.SIGTERM)
        assert process.wait(PATIENCE_S) != 0
        note(f"{moment}: {gone(space, since_s)}")
        told = (space.root / "output.txt").read_text()
        assert "stopped by SIGTERM" in told and "SIGABRT" not in told and "Traceback" not in told
    space.let_go()
    assert space.measure_all().returncode == 0
    assert space.statuses() == {("ok", 1): 1}


def test_a_dead_part_of_ray_is_noticed_at_once(tmp_path):
    space = Workspace(tmp_path)
    space.campaign({"workload": [{"name": "nap"}]})
    space.hold_after(0)
    process = space.start(TARGET)
    wait_until(lambda: space.naps_taken().total() == 1, 200, "the worker is busy")
    since_s = time.monotonic()
    os.kill(min(space.processes("gcs_server")), signal.SIGKILL)
    assert process.wait(PATIENCE_S) != 0
    note(f"without GCS: {gone(space, since_s)}")
    assert "A process of Ray itself died" in (space.root / "output.txt").read_text()


def test_nothing_around_us_reaches_into_our_ray(tmp_path):
    """Inside a job of another Ray, with its address, its token, its settings and a TMPDIR that no socket could have."""
    space = Workspace(tmp_path)
    space.campaign({"workload": [{"name": "nap"}], "seed": [0, 1]})
    long = tmp_path / ("x" * 120)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("somebody else's")
    long.mkdir()
    foreign = tmp_path / "foreign"
    around = {
        **space.environment, "HOME": str(tmp_path), "TMPDIR": str(long), "RAY_TMPDIR": str(long),
        "RAY_ADDRESS": "127.0.0.1:9", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 32, "RAY_NAMESPACE": "theirs",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"KVFRONTIER_NAPS": "/nowhere"}}}',
        "RAY_OVERRIDE_RESOURCES": '{"CPU": 0}', "RAY_CLIENT_MODE": "1",
    }  # fmt: skip
    head = ["ray", "start", "--head", "--include-dashboard=false", "--num-cpus=1", "--object-store-memory=80000000"]
    head += ["--disable-usage-stats", "--block", f"--temp-dir=/tmp/for-{os.getpid()}"]
    other = subprocess.Popen(head, env={**space.environment, "RAY_AUTH_MODE": "disabled"}, start_new_session=True,
                             stdout=foreign.open("w"), stderr=subprocess.STDOUT)  # fmt: skip
    try:
        wait_until(lambda: "Ray runtime started" in foreign.read_text(), 100, "a foreign Ray is up on Ray's own ports")
        done = subprocess.run(space.command(TARGET), env=around, cwd=space.root, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT)  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert space.statuses() == {("ok", 1): 2}
        assert other.poll() is None, "the foreign Ray still runs"
        assert (tmp_path / ".ray" / "auth_token").read_text() == "somebody else's"
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait(60)
        shutil.rmtree(f"/tmp/for-{os.getpid()}", ignore_errors=True)
        for pid in space.processes(""):
            os.kill(pid, signal.SIGKILL)
