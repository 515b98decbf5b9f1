"""How scripts/test runs its stages and adds them up. Python is a program here that notes its calls."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test"
ENV = 'kvf_root=$(cd "$here/.." && pwd)\nexport PATH="$kvf_root/bin:$PATH"\n'
PYTEST = """#!/bin/sh
echo "$4" >>"$(dirname "$0")/../calls"
case $4 in
slurm) sleep 0.3 && echo "== 2 passed in 0.3s ==" ;;
fault) echo "== 1 failed, 3 passed in 1.0s ==" && exit 1 ;;
browser) echo "== 9 deselected in 0.1s ==" && exit 5 ;;
*) echo "== 5 passed, 1 skipped in 2.0s ==" ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "scripts" / "env").write_text(ENV)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(PYTEST)
    python.chmod(0o755)

    def call(ci):
        (tmp_path / "calls").unlink(missing_ok=True)
        done = subprocess.run(
            [tmp_path / "scripts" / "test"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "CI": ci}
        )
        return done, (tmp_path / "calls").read_text().splitlines()

    return call


def test_all_stages_run_and_are_added_up(run):
    done, calls = run("")
    assert done.returncode == 1 and len(calls) == 8
    assert "30 passed, 1 failed, 5 skipped" in done.stdout and "Failed stages: fault\n" in done.stdout
    assert done.stdout.index("== 2 passed") < done.stdout.index("== fault"), "what ran meanwhile is shown, too"


def test_in_ci_a_stage_without_tests_is_a_failure(run):
    done, _ = run("true")
    assert done.returncode == 1 and "Failed stages: fault browser\n" in done.stdout
