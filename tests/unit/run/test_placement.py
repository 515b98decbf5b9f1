"""How many workers, and on what: cores, memory, GPUs that are there or not."""

from types import SimpleNamespace

import pytest
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.run import machine, placement
from kvfrontier.run.placement import place

CELL = Cell("toy", Component("torch"), "here", Component("full"), Component("speed"), 0)
TORCH = SimpleNamespace(threads=2, source="measured")


@pytest.fixture
def a_machine(monkeypatch):
    def make(kind="cpu", cores=16, available_bytes=10**12, parameters=10**9, visible=""):
        devices = {"here": SimpleNamespace(kind=kind)}
        models = {"toy": SimpleNamespace(spec=SimpleNamespace(parameters=parameters))}
        monkeypatch.setattr(placement, "load_devices", lambda project: devices)
        monkeypatch.setattr(placement, "load_models", lambda project: models)
        monkeypatch.setattr(placement, "usable_cores", lambda: cores)
        monkeypatch.setattr(placement, "available_bytes", lambda: available_bytes)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return make


def test_on_a_cpu_cores_are_shared_out_among_workers(a_machine):
    a_machine()
    assert place(None, CELL, TORCH) == placement.Placement(workers=8, threads=2)
    assert place(None, CELL, TORCH, workers=3).workers == 3


def test_no_more_workers_than_models_fit_into_memory(a_machine):
    a_machine(available_bytes=20 * 10**9)
    assert place(None, CELL, TORCH).workers == 3
    assert place(None, CELL, SimpleNamespace(source="model")).workers == 16, "a cost model loads no weights"
    a_machine(available_bytes=10**9)
    assert place(None, CELL, TORCH).workers == 1
    a_machine(available_bytes=10**9, parameters=None)
    assert place(None, CELL, TORCH).workers == 8


@pytest.mark.parametrize(("visible", "workers", "gpus"), [("0,3", 2, 1.0), ("GPU-5f1c", 1, 1.0), ("", 1, 0.0)])
def test_one_worker_a_gpu_and_without_any_a_worker_that_says_so(a_machine, visible, workers, gpus):
    a_machine(kind="cuda", visible=visible)
    assert place(None, CELL, TORCH) == placement.Placement(workers, 2, gpus)


def test_a_cluster_has_gpus_though_this_machine_has_none(a_machine):
    a_machine(kind="cuda")
    assert place(None, CELL, TORCH, workers=8, address="head:6379") == placement.Placement(8, 2, 1.0, "head:6379")


def test_limits_of_a_container_count(tmp_path, monkeypatch):
    for name, text in {"cpu.max": "250000 100000", "memory.max": "8000", "memory.current": "5000",
                       "memory.stat": "anon 1\ninactive_file 500"}.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_cgroups", lambda: iter([tmp_path]))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(64)))
    assert machine.usable_cores() == 2
    assert machine.available_bytes() == 3500


def test_what_stands_for_no_limit_is_none(tmp_path, monkeypatch):
    for name in ("cpu.max", "memory.max"):
        (tmp_path / name).write_text("max 100000")
    monkeypatch.setattr(machine, "_cgroups", lambda: iter([tmp_path, tmp_path / "absent"]))
    assert machine.usable_cores() >= 1 and machine.available_bytes() > 10**6
