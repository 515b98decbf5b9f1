"""Whatever a cell does becomes one row: values that cannot be, failures by kind, provenance without secrets."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from kvfrontier.errors import DeviceMismatch, Unsupported
from kvfrontier.metrics import (
    ACHIEVED_BUDGET,
    KV_DEVICE_BYTES,
    KV_DISK_BYTES,
    KV_FORMULA_BYTES,
    KV_HOST_BYTES,
    TTFT_S,
    Measurement,
)
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.plan.planned import PlannedCell
from kvfrontier.run import cell_runner
from kvfrontier.run.cell_runner import Sessions, run_cell
from kvfrontier.run.failure import describe
from kvfrontier.store.rows import read_table, write_row

CELL = Cell("toy", Component("simulator"), "fake", Component("full"), Component("speed"), 3)
PLANNED = PlannedCell(CELL, CELL.cell_id, "ab12", {"device": "fake"}, {}, "speed", "model")


class Loader(Sessions):
    def __init__(self, error=None):
        super().__init__(SimpleNamespace(root=Path("/nowhere")))
        self.error = error

    def get(self, cell, engine):
        if self.error:
            raise self.error
        return object()


@pytest.fixture
def outcome(monkeypatch):
    """Run a workload that yields `values`, then raises `error`; the row comes back through the store."""

    def run(*values, error=None, load_error=None):
        def workload(session, strategy, seed):
            assert seed == 3
            yield from values
            if error:
                raise error

        plugin = SimpleNamespace(packages=("pyarrow",), data=lambda: (), run=workload)
        monkeypatch.setattr(cell_runner, "instantiate", lambda cell: (SimpleNamespace(packages=()), None, plugin))
        return run_cell(PLANNED, Loader(load_error), attempt=2)

    return run


def test_a_good_cell_becomes_a_row_that_the_store_takes(outcome, tmp_path):
    row = outcome(Measurement(TTFT_S, 0.5), Measurement(ACHIEVED_BUDGET, 0.2), Measurement(ACHIEVED_BUDGET, 0.4))
    write_row(tmp_path, row)
    stored = read_table(tmp_path)[0].to_pylist()[0]
    assert stored["status"] == "ok" and stored["attempt"] == 2 and stored["source"] == "model"
    assert stored["achieved_budget"] == pytest.approx(0.3)
    assert json.loads(stored["cell"]) == CELL.as_dict() and stored["cell_id"] == CELL.cell_id
    assert {"python", "host", "load_average", "pyarrow"} <= set(dict(stored["provenance"]))


class OutOfMemoryError(RuntimeError):
    """Stands for torch.cuda.OutOfMemoryError, which is known by its name."""


@pytest.mark.parametrize(
    ("error", "status", "asked_bytes"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"), "oom", int(2.5 * 2**30)),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), "oom", 4096),
        (MemoryError(), "oom", None),
        (OSError(12, "Cannot allocate memory"), "oom", None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom", None),
        (RuntimeError("shapes do not match"), "error", None),
        (Unsupported("no steps here"), "unsupported", None),
        (DeviceMismatch("this is no H100"), "error", None),
    ],
)
def test_failures_are_sorted_and_keep_what_was_measured_before(outcome, error, status, asked_bytes):
    row = outcome(Measurement(TTFT_S, 0.5), error=error)
    assert (row["status"], row["reason_bytes"], row["reason_phase"]) == (status, asked_bytes, "run")
    assert row["reason_class"] == type(error).__name__ and "Traceback" in row["reason_detail"]
    assert len(row["measurements"]) == 1


def test_an_error_without_words_of_its_own_is_named_by_its_class():
    assert describe(KeyError("added_tokens"), "load").reason == "KeyError: 'added_tokens'"
    assert describe(RuntimeError(), "load").reason == "RuntimeError"
    assert describe(Unsupported("not on a CPU"), "load").reason == "not on a CPU"


def test_a_model_that_cannot_be_loaded_fails_in_the_phase_load(outcome):
    row = outcome(load_error=OSError("no such folder"))
    assert (row["status"], row["reason_phase"], row["reason"]) == ("error", "load", "OSError: no such folder")


def test_values_that_are_not_finite_are_left_out_and_counted(outcome):
    row = outcome(Measurement(TTFT_S, math.nan), Measurement(TTFT_S, math.inf), Measurement(TTFT_S, 1.0))
    assert row["status"] == "ok" and len(row["measurements"]) == 1
    assert row["provenance"]["not_finite"] == "ttft_s: 2"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([Measurement(TTFT_S, -0.1)], "below zero"),
        ([Measurement("tttf_s", 0.1)], "not declared"),
        ([], "measured nothing"),
        ([Measurement(TTFT_S, math.nan)], "measured nothing"),
        ([Measurement(KV_DEVICE_BYTES, 11, "decode"), Measurement(KV_FORMULA_BYTES, 10, "decode")], "formula allows"),
        (
            [
                Measurement(KV_DEVICE_BYTES, 1, "decode"),
                Measurement(KV_HOST_BYTES, 6, "decode"),
                Measurement(KV_DISK_BYTES, 4, "decode"),
                Measurement(KV_FORMULA_BYTES, 10, "decode"),
            ],
            "formula allows",
        ),
    ],
)
def test_impossible_measurements_are_errors_not_numbers(outcome, values, words):
    row = outcome(*values)
    assert row["status"] == "error" and words in row["reason"] and row["reason_phase"] == "check"


def test_no_environment_variable_reaches_the_row(outcome, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_mine")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "ray_secret_of_mine")
    assert "secret_of_mine" not in repr(outcome(Measurement(TTFT_S, 0.5)))
