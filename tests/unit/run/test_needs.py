"""What the job of a shard asks of Slurm: from its cells, its device, the campaign, the profile, and the attempt."""

from types import SimpleNamespace

import pytest
from kvfrontier.errors import Unsupported
from kvfrontier.plan.disk import prepare, read_shard
from kvfrontier.plan.model import Model, ModelSpec
from kvfrontier.plan.project import Project
from kvfrontier.registry import ENGINES
from kvfrontier.run import needs as needing
from kvfrontier.run.estimate import Estimate
from kvfrontier.run.needs import LOAD_S, NOTHING, Needs, _weight_bytes, site_of
from kvfrontier.run.outcome import outcome_row
from kvfrontier.store.rows import write_row
from workspace import SHAPE, Workspace

SITE = {"max_runtime": "1440"}
GPU = {"kind": "cuda", "memory_bytes": 80e9}
CELLS = {
    "engine": ["torch"],
    "workload": [{"name": "speed", "text": "generated", "context_tokens": 1000, "batch_size": [1, 4]}],
}
WEIGHTS_MB = SHAPE["parameters"] * 4 / 1e6
KV_MB = 4 * (1000 + 32) * 2 * SHAPE["layers"] * SHAPE["kv_heads"] * SHAPE["head_dim"] * 4 / 1e6
"""Of the largest cell: a batch of four."""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Plans a campaign and returns its index and a function to ask for the resources of its only shard."""
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.delenv("KVFRONTIER_RESULTS", raising=False)
    monkeypatch.setattr(needing, "estimates", lambda plan, folder, project: [Estimate(1000.0, "model")] * len(plan))
    monkeypatch.setattr(needing, "longest_minutes", {"brief": 20}.get)

    def plan(axes=CELLS, device=None, site=SITE, is_main=True, **settings):
        space = Workspace(tmp_path)
        space._write("devices.yaml", {"fake": device or {"kind": "cpu"}})
        space.campaign(axes, **{"timeout_s": 60, **settings})
        index = prepare(Project.find(), "trial")
        (shard,) = index.shards
        found = Needs(index, site, is_main).resources()

        def resources(attempt=1):
            return {name: function(SimpleNamespace(shard=shard.name), attempt) for name, function in found.items()}

        return SimpleNamespace(index=index, shard=shard.name, resources=resources)

    return plan


def test_a_cpu_job_asks_for_memory_for_weights_and_the_largest_cache_and_no_gpu(ask):
    asked = ask().resources()
    assert asked["mem_mb"] == pytest.approx(4000 + WEIGHTS_MB + KV_MB, abs=1)
    assert asked["cpus_per_task"] == 1 and asked["nodes"] == 1
    assert [asked[name] for name in ("gpu", "gpu_model", "mpi", "tasks", "constraint", "slurm_partition")] == [None] * 6


def test_what_an_engine_reserves_is_asked_for_too(ask, monkeypatch):
    asked = ask().resources()["mem_mb"]
    monkeypatch.setattr(ENGINES.get("torch"), "host_bytes", lambda self, spec, device: spec.layers * 10**9)
    assert ask().resources()["mem_mb"] == pytest.approx(asked + SHAPE["layers"] * 1000, abs=1)


def test_of_several_settings_the_one_that_reserves_most_counts(ask, monkeypatch):
    pool = {"sdpa": 10**9, "eager": 3 * 10**9, "chunked": 2 * 10**9}
    monkeypatch.setattr(ENGINES.get("torch"), "reloadable", lambda self, device: {"prefill"})
    asked = ask({**CELLS, "engine": ["torch"]}).resources()["mem_mb"]
    monkeypatch.setattr(ENGINES.get("torch"), "host_bytes", lambda self, *_: pool[self.prefill])
    several = {**CELLS, "engine": [{"name": "torch", "prefill": list(pool)}]}
    assert ask(several).resources()["mem_mb"] == pytest.approx(asked + 3000, abs=1)


def test_what_will_not_run_takes_no_memory(ask, monkeypatch):
    def refuse(self, strategy, spec):
        if self.prefill == "eager":
            raise Unsupported("not here")

    monkeypatch.setattr(ENGINES.get("torch"), "reloadable", lambda self, device: {"prefill"})
    monkeypatch.setattr(ENGINES.get("torch"), "host_bytes", lambda self, *_: 10**12 * (self.prefill == "eager"))
    asked = ask({**CELLS, "engine": ["torch"]}).resources()["mem_mb"]
    monkeypatch.setattr(ENGINES.get("torch"), "check", refuse)
    several = {**CELLS, "engine": [{"name": "torch", "prefill": ["sdpa", "eager"]}]}
    assert ask(several).resources()["mem_mb"] == asked


def test_each_setting_of_the_engine_is_given_time_to_load(ask, monkeypatch):
    one = ask({**CELLS, "engine": ["torch"]}).resources()["runtime"]
    monkeypatch.setattr(ENGINES.get("torch"), "reloadable", lambda self, device: {"chunk_tokens"})
    monkeypatch.setattr(needing, "estimates", lambda plan, folder, project: [Estimate(100.0, "model")] * len(plan))
    ten = {**CELLS, "engine": [{"name": "torch", "prefill": "chunked", "chunk_tokens": list(range(100, 1100, 100))}]}
    assert ask(ten).resources()["runtime"] == one + 9 * LOAD_S / 60


def test_a_gpu_job_asks_for_one_gpu_a_worker_of_the_devices_kind(ask):
    asked = ask(device={**GPU, "slurm": {"gpu_model": "h100", "partition": "fast"}}, shard={"workers": 3}).resources()
    assert (asked["gpu"], asked["gpu_model"], asked["slurm_partition"]) == (3, "h100", "fast")
    assert asked["mem_mb"] == pytest.approx(2000 + 3 * (8000 + WEIGHTS_MB + KV_MB), abs=1)


def test_a_cost_model_needs_neither_the_gpu_nor_the_weights(ask):
    device = {**GPU, "memory_bytes_per_s": 1e12, "flops_per_s": 1e14}
    asked = ask({**CELLS, "engine": ["simulator"]}, device=device).resources()
    assert asked["gpu"] is None and asked["mem_mb"] == 4000


def test_threads_of_the_engine_are_cpus(ask):
    asked = ask({**CELLS, "engine": [{"name": "torch", "threads": 4}]}, shard={"workers": 2}).resources()
    assert asked["cpus_per_task"] == 8


def test_the_time_limit_holds_the_estimates_with_a_margin_and_one_cell_that_hangs(ask):
    asked = ask().resources()  # timed cells run one after another
    assert asked["runtime"] == -(-(300 + 1.5 * 2000 + 60) // 60)
    assert ask(timeout_s=7200).resources()["runtime"] >= 120


def test_cells_that_have_a_final_row_take_no_time(ask):
    asked = ask()
    folder = asked.index.campaign_dir
    for cell in read_shard(folder, asked.shard):
        write_row(folder, outcome_row(cell, 1, "infeasible", reason="too large", phase="plan"))
    assert ask().resources()["runtime"] == 10, "the least"


def test_the_next_attempt_gets_more_memory_and_time_but_no_more_than_the_partition_allows(ask):
    job = ask()
    first, second, third = (job.resources(attempt) for attempt in (1, 2, 3))
    assert second["runtime"] == pytest.approx(2 * first["runtime"], abs=1)
    assert second["mem_mb"] == pytest.approx(1.5 * first["mem_mb"], abs=1)
    assert third["mem_mb"] == pytest.approx(2.25 * first["mem_mb"], abs=1)
    assert ask(site={"max_runtime": "90"}).resources(2)["runtime"] == 90
    assert ask(site={"max_runtime": "90", "slurm_partition": "brief"}).resources(2)["runtime"] == 20
    assert ask(site={"slurm_partition": "x"}).resources(3)["runtime"] == pytest.approx(4 * first["runtime"], abs=3)


def test_what_a_device_says_goes_before_what_the_profile_says_for_all(ask):
    site = {**SITE, "slurm_partition": "common", "constraint": "ib"}
    asked = ask(device={"kind": "cpu", "slurm": {"constraint": "h100"}}, site=site).resources()
    assert (asked["slurm_partition"], asked["constraint"]) == ("common", "h100")


def test_a_job_of_two_nodes_leaves_the_steps_to_our_launcher(ask, monkeypatch):
    device = {**GPU, "slurm": {"gpu_model": "h100"}}
    job = ask(device=device, shard={"nodes": 2, "workers": 4}, site={**SITE, "slurm_extra": "--exclude=n7"})
    asked = job.resources()
    assert (asked["mpi"], asked["nodes"], asked["tasks"], asked["gpu"], asked["gpu_model"]) == (
        "srun",
        2,
        2,
        None,
        None,
    )
    assert asked["slurm_extra"] == "--exclude=n7 --ntasks-per-node=1 --gpus-per-node=h100:2"
    wildcards = SimpleNamespace(shard=job.shard)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert Needs(job.index, SITE, is_main=True).launcher(wildcards) == "", "nothing is launched where Snakemake runs"
    words = Needs(job.index, SITE, is_main=False).launcher(wildcards).split()
    assert words[0] == "srun" and {
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=2",
        "kvfrontier.run.span",
    } <= set(words)
    assert words[-1] == "4", "workers"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert Needs(job.index, SITE, is_main=False).launcher(wildcards) == "", "this machine is one node"


def test_a_job_asks_for_what_its_submitter_asked_but_for_the_time(ask, monkeypatch):
    outside = ask().resources()
    monkeypatch.setattr(needing, "estimates", lambda *args: pytest.fail("a job has no use for estimates"))
    inside = ask(is_main=False).resources()
    assert inside == {**outside, "runtime": None}


def test_without_a_cluster_nothing_is_worked_out(ask, monkeypatch):
    job = ask(site={})
    monkeypatch.setattr(Needs, "_work_out", lambda *args: pytest.fail("nobody asks"))
    assert job.resources() == NOTHING.resources(1, {})


def test_weights_whose_number_nobody_has_written_down_are_estimated(tmp_path):
    shape = {"layers": 30, "hidden": 576, "vocab": 49152, "q_heads": 9, "kv_heads": 3, "head_dim": 64}
    spec = ModelSpec("smollm2-135m", **shape)
    assert 4 * 100e6 < _weight_bytes(Model(spec, "hub")) < 4 * 200e6
    assert _weight_bytes(Model(ModelSpec("unknown"), "hub")) == 4 * 8e9
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    assert _weight_bytes(Model(spec, "folder", str(tmp_path))) == 2000


def test_only_what_counts_is_taken_from_the_profile():
    resources = {
        "mem_mb": 2000,
        "slurm_partition": "a100|h100",
        "max_runtime": 60,
        "slurm_account": "lab",
        "constraint": None,
    }
    assert site_of((name, SimpleNamespace(raw=raw)) for name, raw in resources.items()) == {
        "slurm_partition": "a100|h100", "max_runtime": "60",
    }  # fmt: skip
