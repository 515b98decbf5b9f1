"""A Snakemake that waits for jobs which Slurm no longer has is ended; one that has jobs, or work of its own, is not."""

import subprocess
import sys

import pytest

WAITS = """
import signal, sys, time
from kvfrontier.run.slurm_watch import job_prefix, watch_for_lost_jobs
print(job_prefix(), flush=True)
def stop(number, frame):
    print("told to stop", flush=True)
    {stop}
signal.signal(signal.SIGTERM, stop)
watch_for_lost_jobs(poll_s=0.1, quiet_s=1.0, patience_s=1.0)
{work}
time.sleep({seconds})
print("went on", flush=True)
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program that waits; `squeue` is a script that prints the file `names`, or fails."""
    squeue = tmp_path / "squeue"

    def start(script, stop="sys.exit(3)", work="", seconds=30):
        squeue.write_text(f"#!/bin/sh\n{script}\n")
        squeue.chmod(0o755)
        program = WAITS.format(stop=stop, work=work, seconds=seconds)
        return subprocess.Popen(
            [sys.executable, "-c", program], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def test_without_jobs_it_is_told_to_stop_and_says_what_to_do(run):
    out, error = run("echo somebody-elses").communicate(timeout=20)
    assert "told to stop" in out and "went on" not in out
    assert "run the same command again to go on" in error


def test_one_that_does_not_heed_it_ends_all_the_same(run):
    process = run("true", stop="pass", work="while True: time.sleep(1)")
    process.communicate(timeout=20)
    assert process.returncode == 1


def test_a_job_of_its_own_is_waited_for(run, tmp_path):
    process = run(f"cat {tmp_path}/names", seconds=4)
    (tmp_path / "names").write_text(f"{process.stdout.readline().strip()}_some-uuid\n")
    assert "went on" in process.communicate(timeout=20)[0]


@pytest.mark.parametrize(
    ("script", "work"),
    [("echo no controller >&2; exit 1", ""), ("true", "import subprocess; subprocess.Popen(['sleep', '5'])")],
    ids=["slurm does not answer", "a local rule runs"],
)  # fmt: skip
def test_nobody_is_stopped_while_it_is_not_known_or_something_runs(run, script, work):
    assert "went on" in run(script, work=work, seconds=3).communicate(timeout=20)[0]


def test_each_process_has_its_own_prefix_that_the_plugin_takes(run):
    names = {run("true", seconds=0).stdout.readline().strip() for _ in range(2)}
    assert len(names) == 2 and all(name.replace("-", "").isalnum() and len(name) <= 50 for name in names)
