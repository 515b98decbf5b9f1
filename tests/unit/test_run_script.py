"""What scripts/run makes of its arguments. Snakemake and kvfrontier are programs here that note their calls."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "run"
ENV = 'kvf_root=$(cd "$here/.." && pwd)\nexport PATH="$kvf_root/bin:$PATH"\n'
NOTE = (
    '#!/bin/sh\necho "$(basename "$0") $*" >>"$(dirname "$0")/../calls"\n'
    'case "$0 $*" in */"kvfrontier env make none" | */"kvfrontier env make --for lonely") exit 1 ;; esac\n'
)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "scripts" / "env").write_text(ENV)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text("campaign: mine\n")
    (tmp_path / "bin").mkdir()
    for name in ("snakemake", "kvfrontier"):
        (tmp_path / "bin" / name).write_text(NOTE)
        (tmp_path / "bin" / name).chmod(0o755)

    def call(*arguments):
        calls = tmp_path / "calls"
        calls.unlink(missing_ok=True)
        done = subprocess.run([tmp_path / "scripts" / "run", *arguments], capture_output=True)
        return done.returncode, calls.read_text().splitlines() if calls.exists() else []

    return call


def test_environments_are_made_first_and_all_else_goes_to_snakemake(run):
    own, snakemake = "kvfrontier env make --for mine", "snakemake --profile profiles/local"
    assert run() == (0, [own, snakemake])
    assert run("--config", "campaign=mine", "-c", "1") == (0, [own, f"{snakemake} --config campaign=mine -c 1"])
    made = ["kvfrontier env make a", "kvfrontier env make b", own, f"{snakemake} --config campaign=mine"]
    assert run("--with", "a", "--config", "campaign=mine", "--with=b") == (0, made)


def test_a_dry_run_makes_none_and_one_that_cannot_be_made_ends_it(run):
    assert run("--with", "a", "-n") == (0, ["snakemake --profile profiles/local -n"])
    assert run("--with", "none") == (1, ["kvfrontier env make none"])
    code, calls = run("--with")
    assert code != 0 and calls == []


def test_without_an_environment_that_the_campaign_needs_the_rest_is_measured(run):
    code, calls = run("--config", "campaign=lonely")
    assert code == 0 and calls[-1] == "snakemake --profile profiles/local --config campaign=lonely"
