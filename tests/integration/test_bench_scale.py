"""The benchmark of scale on a campaign of a hundred cells: its figures, and those that hold at any size."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from workspace import CHECKOUT

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(400)]
PROMISED = (
    "plan_100_s", "run_100_s", "overhead_cell_ms", "store_100_s", "summary_100_s", "frontier_100_s", "report_100_s",
    "disk_cell_bytes", "inodes_100", "noop_100_s", "noop_100_mb", "changed_1pct_100_s", "changed_1pct_run_s",
    "per_cell_jobs_20_s", "per_cell_jobs_20_mb",
)  # fmt: skip


def test_every_figure_is_printed_and_one_percent_is_one_percent(tmp_path):
    script = str(CHECKOUT / "scripts" / "bench_scale.py")
    command = [sys.executable, script, "--cells", "100", "--jobs", "20", "--one-cell-shards", "0"]
    told = subprocess.run(
        ["timeout", "-k", "10", "360", *command, "--folder", str(tmp_path)], text=True, capture_output=True,
        env={**os.environ, "KVFRONTIER_WORKERS": "2"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    figures = dict(line.split("=") for line in told.stdout.splitlines())
    assert not [name for name in PROMISED if not float(figures[name]) > 0]
    assert figures["changed_1pct_cells"] == figures["changed_1pct_jobs"] == "1"
    assert not list(tmp_path.iterdir()), "it cleans up"


def test_a_number_of_cells_that_makes_no_grid_is_refused():
    script = str(CHECKOUT / "scripts" / "bench_scale.py")
    told = subprocess.run([sys.executable, script, "--cells", "150"], text=True, capture_output=True)
    assert told.returncode == 2
    assert "--cells: got 150; expected a multiple of 100" in told.stderr
