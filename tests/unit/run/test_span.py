"""Where Ray's sockets go, and how the tasks of a job on several nodes find each other."""

import os
import stat
import subprocess
import sys

import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.run.socket_folder import VARIABLE, socket_folder
from kvfrontier.run.span import Meeting
from kvfrontier.run.span_node import free_ports

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_LAUNCHER_PORT": "4711",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
}


@pytest.fixture
def base(monkeypatch):
    """A short folder of this test's own."""
    path = f"/tmp/t{os.getpid()}"
    os.mkdir(path)
    monkeypatch.setenv(VARIABLE, path)
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def test_a_long_tmpdir_is_no_matter(monkeypatch, base):
    monkeypatch.setenv("TMPDIR", "/tmp/" + "x" * 200)
    folder, lock = socket_folder()
    assert folder.parent.as_posix() == base and stat.S_IMODE(folder.stat().st_mode) == 0o700
    os.close(lock)


def test_a_folder_that_is_in_use_stays_and_one_whose_process_was_killed_goes(base):
    used, lock = socket_folder()
    left, lock_of_killed = socket_folder()
    os.close(lock_of_killed)
    new, another = socket_folder()
    assert used.exists() and new.exists() and not left.exists()
    os.close(lock)
    os.close(another)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/tmp/" + "x" * 20, r"expected an absolute path of at most 15 bytes"),
        ("here", r"expected an absolute path"),
        ("/proc", r"Ray needs a folder for its sockets under /proc: .*set KVFRONTIER_TMP to .*/dev/shm"),
    ],
)
def test_a_place_that_does_not_do_is_refused_with_the_way_out(monkeypatch, path, words):
    monkeypatch.setenv(VARIABLE, path)
    with pytest.raises(Unavailable, match=words):
        socket_folder()


def test_tasks_of_one_step_meet_and_the_token_is_for_their_user_alone(tmp_path, monkeypatch):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    meeting = Meeting.of_this_step(tmp_path)
    assert (meeting.rank, meeting.nodes) == (1, 2)
    meeting.folder.mkdir()
    assert meeting.head() is None
    meeting.open("10.0.0.1:6379", "secret")
    assert meeting.head() == {"address": "10.0.0.1:6379", "token": "secret"}
    assert stat.S_IMODE((meeting.folder / "head").stat().st_mode) == 0o600


def test_a_requeued_job_does_not_meet_in_the_place_of_its_first_life(tmp_path, monkeypatch):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    first = Meeting.of_this_step(tmp_path)
    monkeypatch.setenv("SLURM_STEP_LAUNCHER_PORT", "4712")
    assert Meeting.of_this_step(tmp_path).folder != first.folder


def test_outside_of_a_step_it_says_how_to_start_it(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    call = [sys.executable, "-m", "kvfrontier.run.span", str(tmp_path), "2", "true"]
    told = subprocess.run(call, env=environment, text=True, capture_output=True)
    assert told.returncode == 1
    assert "start this by srun inside a Slurm job" in told.stderr and "Traceback" not in told.stderr


def test_ports_are_free_and_differ():
    ports = free_ports(20)
    assert len(set(ports)) == 20
