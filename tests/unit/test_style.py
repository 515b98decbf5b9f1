"""Formatters and linters have nothing to say: Python by ruff, rules by snakefmt and Snakemake's own lint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = {
    "ruff check": ["ruff", "check", "--no-cache"],
    "ruff format": ["ruff", "format", "--check", "--no-cache"],
    "snakefmt": ["snakefmt", "--check", "Snakefile", "workflow/rules"],
    "snakemake --lint": ["snakemake", "--lint", "--config", "campaign=smoke"],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_checkout_is_clean(call, tmp_path):
    environment = {
        **os.environ,
        "KVFRONTIER_RESULTS": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    told = subprocess.run(call, cwd=ROOT, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert told.returncode == 0, told.stdout + told.stderr
