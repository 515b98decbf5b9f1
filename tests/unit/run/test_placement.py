"""How many workers, and on what: cores, memory, GPUs that are there or not."""

import os
from pathlib import Path
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


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """A machine of 64 cores; makes cgroup files under a root that stands for /sys/fs/cgroup."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(machine, "meminfo", lambda: {"MemAvailable": 10**12})
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(machine.CORES, raising=False)
    text, lines = machine._text, []
    monkeypatch.setattr(
        machine, "_text", lambda path: "\n".join(lines) if path == Path("/proc/self/cgroup") else text(path)
    )

    def make(line, **files):
        lines.append(line)
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return make


def test_limits_of_a_container_count(cgroups):
    stat = "anon 1\ninactive_file 500"
    cgroups("0::/job", job__cpu_DOT_max="250000 100000", job__memory_DOT_max="8000", job__memory_DOT_current="5000",
            job__memory_DOT_stat=stat)  # fmt: skip
    assert machine.usable_cores() == 2
    assert machine.available_bytes() == 3500


def test_a_limit_above_ours_counts(cgroups):
    cgroups("0::/slurm/job/step", slurm__memory_DOT_max="9000", slurm__memory_DOT_current="1000",
            slurm__job__memory_DOT_max="max", slurm__job__memory_DOT_current="1")  # fmt: skip
    assert machine.available_bytes() == 8000


def test_limits_of_version_1_count(cgroups):
    folder = "memory__slurm__uid_7__job_9__"
    files = {"limit_in_bytes": "8000\n", "usage_in_bytes": "5000\n", "stat": "inactive_file 1\ntotal_inactive_file 500"}
    cgroups(
        "9:memory:/slurm/uid_7/job_9/step_0", **{f"{folder}memory_DOT_{name}": text for name, text in files.items()}
    )
    cgroups("4:cpu,cpuacct:/slurm/uid_7", **{"cpu,cpuacct__slurm__uid_7__cpu_DOT_cfs_quota_us": "300000\n",
            "cpu,cpuacct__slurm__uid_7__cpu_DOT_cfs_period_us": "100000\n"})  # fmt: skip
    assert machine.usable_cores() == 3
    assert machine.available_bytes() == 3500


def test_no_more_than_snakemake_was_given(cgroups, monkeypatch):
    cgroups("0::/job", job__cpu_DOT_max="400000 100000")
    for given, cores in (("1", 1), ("8", 4), ("", 4), ("all", 4), ("0", 1), ("-2", 4)):
        monkeypatch.setenv(machine.CORES, given)
        assert machine.usable_cores() == cores


def test_what_stands_for_no_limit_is_none(cgroups):
    cgroups("0::/", cpu_DOT_max="max 100000", memory_DOT_max="max", memory_DOT_current="7")
    cgroups("4:cpu:/", cpu__cpu_DOT_cfs_quota_us="-1\n", cpu__cpu_DOT_cfs_period_us="100000\n")
    cgroups(
        "5:memory:/gone",
        memory__memory_DOT_limit_in_bytes="9223372036854771712\n",
        memory__memory_DOT_usage_in_bytes="7\n",
    )
    assert machine.usable_cores() == 64 and machine.available_bytes() == 10**12


@pytest.mark.parametrize(
    ("told", "cores", "mib"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "2000"}, 4, 2000),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "500"}, 8, 4000),
        ({"SLURM_MEM_PER_NODE": "0"}, 64, None),  # all of it
    ],
)
def test_a_slurm_job_uses_what_it_was_given_and_not_the_node(cgroups, monkeypatch, told, cores, mib):
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert machine.usable_cores() == 64, "outside of a job they mean nothing"
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert machine.usable_cores() == cores
    assert machine.available_bytes() == (mib * 2**20 if mib else 10**12)


@pytest.mark.parametrize(("visible", "workers"), [("0,1,2,3", 2), ("0", 1)])
def test_an_engine_that_spreads_a_model_gets_its_gpus_together(a_machine, visible, workers):
    a_machine(kind="cuda", visible=visible)
    assert place(None, CELL, SimpleNamespace(source="measured", gpus=2)) == placement.Placement(workers, 1, 2.0)
