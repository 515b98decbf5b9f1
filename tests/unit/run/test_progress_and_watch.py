"""The line a person watches, and knowing when to stop."""

import io
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
from kvfrontier.run.progress import Progress
from kvfrontier.run.watch import Stopped, stoppable


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_counts_failures_and_says_how_long_it_will_take():
    progress = Progress("toy", 10, Counter(ok=4), Terminal())
    progress.add("ok")
    progress.add("error")
    assert progress.line().startswith("toy: 6 of 10 cells, 1 error, about ")
    assert progress.line().endswith(" left")
    assert progress.counts == {"ok": 5, "error": 1}


def test_a_terminal_gets_one_line_in_place_and_a_file_gets_none_in_between():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress("toy", 2, Counter(), stream)
        progress.add("ok")
        progress.show()
        progress.close()
    assert terminal.getvalue().count("\n") == 1 and "\r" in terminal.getvalue()
    assert "\r" not in file.getvalue() and file.getvalue().endswith("\n")


def test_a_terminal_sees_that_long_cells_still_run_and_a_file_is_not_flooded(monkeypatch):
    now = iter(range(0, 1000, 5))
    monkeypatch.setattr("kvfrontier.run.progress.time.monotonic", lambda: float(next(now)))
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress("toy", 2, Counter(), stream)
        for _ in range(3):
            progress.tick()
    assert "toy: 0 of 2 cells, the first ones since" in terminal.getvalue()
    assert file.getvalue() == ""


def test_a_signal_becomes_stopped_once_and_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="SIGTERM"), stoppable():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_was_ignored_before_stays_so_as_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_death_of_the_snakemake_above_stops_us_though_a_shell_is_in_between(tmp_path):
    child = tmp_path / "child.py"
    child.write_text(
        "import time\nfrom kvfrontier.run.watch import Stopped, stoppable\n"
        "try:\n    with stoppable():\n        print('ready', flush=True)\n        time.sleep(30)\n"
        "except Stopped:\n    print('stopped', flush=True)\n"
    )
    parent = tmp_path / "snakemake"
    parent.write_text(f"import subprocess\nsubprocess.run('{sys.executable} {child}; true', shell=True)\n")
    process = subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.kill()
    assert process.stdout.readline() == "stopped\n"
    process.wait()
