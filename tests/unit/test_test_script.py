"""How scripts/test runs its stages, ends those that hang, and adds them up. Python is a stub that notes its calls."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test"
ENV = 'kvf_root=$(cd "$here/.." && pwd)\nexport PATH="$kvf_root/bin:$PATH"\n'
PYTEST = """#!/bin/sh
echo "$4" >>"$(dirname "$0")/../calls"
case $4 in
slurm) sleep 0.3 && echo "== 2 passed in 0.3s ==" ;;
fault) {fault} ;;
browser) echo "== 9 deselected in 0.1s ==" && exit 5 ;;
*) echo "== 5 passed, 1 skipped in 2.0s ==" ;;
esac
"""
FAILS = 'echo "== 1 failed, 3 passed in 1.0s ==" && exit 1'
SLOW = 'sleep 1.7 && echo "== 4 passed in 1.7s =="'
HANGS = 'sleep 300 & echo $! >"$(dirname "$0")/../sleeper" && echo "reading" && wait'
DEAF = f"trap '' INT; {HANGS}"


class Script:
    """A copy of the script, in which the fault stage has a budget of one second, and one more until it is killed."""

    def __init__(self, root):
        self.root = root
        text = SCRIPT.read_text()
        for pattern, short in ((r"\[fault\]=\d+", "[fault]=1"), ("-k 10", "-k 1")):
            text, found = re.subn(pattern, short, text)
            assert found == 1
        for path, content in {"scripts/env": ENV, "scripts/test": text, "bin/python": ""}.items():
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_text(content)
            (root / path).chmod(0o755)

    def start(self, fault, **variables):
        (self.root / "bin" / "python").write_text(PYTEST.replace("{fault}", fault))
        return subprocess.Popen(
            [self.root / "scripts" / "test"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={"PATH": "/usr/bin:/bin", **variables}, start_new_session=True,
        )  # fmt: skip

    def run(self, fault, **variables):
        """Exit code, what was said, and what pytest was asked for."""
        running = self.start(fault, **variables)
        told = running.communicate(timeout=60)[0]
        return running.returncode, told, (self.root / "calls").read_text().splitlines()

    def sleeper(self, patience_s=20):
        """Id of the process that a hung test waits for."""
        until, path = time.monotonic() + patience_s, self.root / "sleeper"
        while not (path.exists() and path.read_text().strip()):
            assert time.monotonic() < until
            time.sleep(0.05)
        return int(path.read_text())


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path)


def is_alive(pid):
    """Not that of a process that has ended and that nobody asked for its exit code."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_all_stages_run_and_are_added_up(script):
    code, told, calls = script.run(FAILS)
    assert code == 1 and len(calls) == 8
    assert "30 passed, 1 failed, 5 skipped" in told and "Failed stages: fault\n" in told
    assert told.index("== 2 passed") < told.index("== fault"), "what ran meanwhile is shown, too"


def test_in_ci_a_stage_without_tests_is_a_failure(script):
    code, told, _ = script.run(FAILS, CI="true")
    assert code == 1 and "Failed stages: fault browser\n" in told


@pytest.mark.parametrize(
    ("hangs", "words"),
    [
        pytest.param(HANGS, "ran out of its 1 seconds", id="hangs"),
        pytest.param(DEAF, "killed: it ran out of its 1 seconds, or of memory", id="deaf"),
    ],
)
def test_a_stage_that_hangs_is_ended_and_red_and_the_others_run(script, hangs, words):
    code, told, calls = script.run(hangs)
    assert code == 1 and len(calls) == 8 and "reading" in told
    assert f"Failed stages: fault ({words})\n" in told
    assert "27 passed, 0 failed, 5 skipped" in told
    assert not is_alive(script.sleeper()), "what it had started is still there"


@pytest.mark.parametrize(
    ("variables", "is_cut"),
    [
        ({}, True), ({"KVFRONTIER_FAULTS": "1"}, True), ({"KVFRONTIER_FAULTS": "50"}, False),
        ({"KVFRONTIER_BUDGETS": "4"}, False), ({"KVFRONTIER_BUDGETS": "0"}, False),
    ],
)  # fmt: skip
def test_many_faults_and_slow_machines_get_more_time(script, variables, is_cut):
    code, told, _ = script.run(SLOW, **variables)
    assert ("fault (ran out of its 1 seconds)" in told) == is_cut == bool(code)


def test_a_budget_that_is_no_number_is_refused(script):
    told = script.start(FAILS, KVFRONTIER_BUDGETS="much")
    assert "KVFRONTIER_BUDGETS: got 'much'; expected a whole number" in told.communicate()[0]
    assert told.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_script_ends_what_it_runs(script, number):
    running = script.start(HANGS, KVFRONTIER_BUDGETS="0")
    sleeper = script.sleeper()
    os.killpg(running.pid, number)
    running.communicate(timeout=30)
    assert running.returncode and not is_alive(sleeper)
