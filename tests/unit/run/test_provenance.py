"""What a row says of where it was taken, and what it must never say."""

from __future__ import annotations

import json
import logging
import os

import pytest
from kvfrontier.errors import ConfigError, Problem
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.plan.project import Project
from kvfrontier.registry import STRATEGIES
from kvfrontier.run.outcome import outcome_row
from kvfrontier.run.provenance import driver_facts, entry_facts, machine_facts, memory_facts, moment_facts
from kvfrontier.run.redact import RedactingFormatter, redact
from workspace import Workspace

CELL = Cell("toy", Component("simulator"), "fake", Component("full"), Component("speed"))


@pytest.fixture
def project(tmp_path):
    return Project.at(Workspace(tmp_path).root)


def facts(root) -> dict[str, str]:
    return {**machine_facts.__wrapped__(root), **moment_facts(1)}


def test_a_slurm_job_is_named_and_only_there(tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    assert not {"slurm_job_id", "node"} & set(facts(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-17")
    found = facts(tmp_path)
    assert (found["slurm_job_id"], found["node"]) == ("4711", "gpu-17")


def test_no_other_variable_of_the_environment_is_in_it(project, monkeypatch):
    for name in list(os.environ):
        if not name.startswith(("PATH", "HOME", "LD_")):
            monkeypatch.setenv(name, f"marked {os.environ[name]}")
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", "marked account")
    monkeypatch.setenv("ANYTHING", "marked")
    assert "marked" not in repr([facts(project.root), driver_facts(project, CELL)])


def test_the_entries_of_model_and_device_are_in_it_as_they_stand_in_the_files(project):
    found = entry_facts(project, CELL)
    assert json.loads(found["model_entry"])["shape"]["layers"] == 4
    assert json.loads(found["device_entry"])["kind"] == "cpu" and "data_entries" not in found
    assert str(project.root) not in repr(found)
    assert entry_facts(project, Cell("gone", CELL.engine, "gone", CELL.strategy, CELL.workload)) == {}


def test_what_a_tier_is_beside_the_cells_device_is_in_it(project):
    offload = STRATEGIES.get("offload")()
    assert memory_facts(project, CELL, offload)["kv_tier"] == "host memory: the same RAM as the device's"
    assert memory_facts(project, CELL, STRATEGIES.get("full")()) == {}
    assert memory_facts(project, Cell("toy", CELL.engine, "gone", CELL.strategy, CELL.workload), offload) == {}


def test_secrets_are_taken_out_of_what_is_kept(monkeypatch, project):
    monkeypatch.setenv("MY_API_KEY", "key-of-mine-1")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    text = "GET https://me:pass-word@hub/x?a=1&access_token=t0ps3cret&b=2 with key-of-mine-1 and abc"
    clean = "GET https://***@hub/x?a=1&access_token=***&b=2 with *** and abc"
    assert redact(text) == clean and redact("a@b.c: http://plain/x@1") == "a@b.c: http://plain/x@1"

    class Planned:
        cell, cell_id, fingerprint, parts, source = CELL, "c", "f", {}, "model"

    row = outcome_row(Planned, 1, "error", reason=text, detail=f"Traceback\n{text}", provenance={"driver": text})
    assert (row["reason"], row["provenance"]["driver"]) == (clean, clean) and row["reason_detail"].endswith(clean)
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (text,), None)
    assert RedactingFormatter("%(message)s").format(record) == clean
    assert "pass-word" not in str(ConfigError([Problem("f", "folder", f"'{text}'", "a folder")]))
