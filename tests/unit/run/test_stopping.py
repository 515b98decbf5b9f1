"""Signals to a driver and to the Snakemake above it, and the guard that cleans up after both."""

import os
import secrets
import signal
import subprocess
import sys
import time

import pytest
from kvfrontier.run import guard
from kvfrontier.run.watch import Stopped, deferred, stoppable
from workspace import wait_until


def test_inside_a_native_library_a_signal_waits_until_it_is_asked_for():
    with pytest.raises(Stopped, match="SIGTERM"), stoppable(), deferred() as stop_if_asked:
        stop_if_asked()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        with pytest.raises(Stopped, match="SIGTERM"):
            stop_if_asked()
        stop_if_asked()  # once: what cleans up may well ask again
        raise Stopped("SIGTERM")


def test_a_signal_that_nobody_asked_for_inside_is_raised_at_the_end():
    with pytest.raises(Stopped, match="SIGHUP"), stoppable(), deferred():
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.1)


def test_a_librarys_own_exit_on_sigterm_counts_as_the_signal():
    with pytest.raises(Stopped, match="SIGTERM"), stoppable(), deferred():
        sys.exit(15)


def test_a_process_that_does_not_stop_is_ended_after_its_last_resorts():
    program = (
        "import time\nfrom kvfrontier.run import watch\nwatch.PATIENCE_S = 0.5\n"
        "with watch.stoppable(), watch.deferred(), watch.last_resort(lambda: print('cleaned', flush=True)):\n"
        "    print('ready', flush=True)\n    time.sleep(30)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    output, errors = process.communicate(timeout=20)
    assert (output, process.returncode) == ("cleaned\n", 130)
    assert "stopped by SIGTERM. What was measured is kept" in errors


def test_the_guard_ends_all_that_has_its_mark_and_nothing_else(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    marked = {**os.environ, guard.MARK: secrets.token_hex(8)}
    deaf = "trap '' TERM; sleep 100 & while :; do sleep 100; done"
    victim = subprocess.Popen(["bash", "-c", deaf], env=marked, start_new_session=True)
    bystander = subprocess.Popen(["sleep", "100"], env={**marked, guard.MARK: "another"})
    watcher = subprocess.Popen([sys.executable, "-m", guard.__name__, folder], env=marked, stdin=subprocess.PIPE)
    try:
        time.sleep(0.5)
        watcher.send_signal(signal.SIGTERM)  # to end the guard is not to end what it guards
        assert victim.poll() is None
        watcher.stdin.close()
        assert watcher.wait(20) == 0
        assert victim.wait(1) == -signal.SIGKILL and bystander.poll() is None
        assert not folder.exists() and not guard.end_marked(marked[guard.MARK])
    finally:
        bystander.kill()
        bystander.wait()


SNAKEMAKE = """
import subprocess, sys, threading
from kvfrontier.run.stop_jobs import stop_jobs_on_signal
stop_jobs_on_signal()
jobs = [threading.Thread(target=subprocess.run, args=(["bash", "-c", command + "; true"],)) for command in sys.argv[1:]]
[job.start() for job in jobs]
try:
    threading.Semaphore(0).acquire()
except KeyboardInterrupt:
    [job.join() for job in jobs]
    sys.exit(1)
"""
JOB = """#!{python}
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), Path(sys.argv[1] + ".cleaned").touch(), os._exit(130)))
Path(sys.argv[1] + ".ready").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_snakemake_alone_reaches_its_commands_and_waits_for_them(tmp_path, kind):
    command = tmp_path / "kvfrontier"
    command.write_text(JOB.format(python=sys.executable))
    command.chmod(0o755)
    jobs = [f"{command} {tmp_path}/{name}" for name in "ab"]
    snakemake = subprocess.Popen([sys.executable, "-c", SNAKEMAKE, *jobs])
    wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2, 20, "both jobs run")
    snakemake.send_signal(kind)
    time.sleep(0.2)
    snakemake.send_signal(kind)
    assert snakemake.wait(20) == 1
    assert len(list(tmp_path.glob("*.cleaned"))) == 2
