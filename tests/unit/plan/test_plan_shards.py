"""Which cells share a shard: one model, one device, and an engine in settings that one process can have."""

from __future__ import annotations

import pytest
from kvfrontier.engines.vllm import VLLM
from kvfrontier.plan.device import Device
from kvfrontier.registry import ENGINES
from toy_project import with_axes

TWO = with_axes(
    model="[small, Qwen/Qwen3-8B]",
    engine="[{name: toy_engine, prefill: [sdpa, eager]}]",
    strategy="[toy_full, toy_h2o]",
)


@pytest.fixture
def reloading(monkeypatch):
    """The toy engine's setting may change in its process, but on a GPU."""
    monkeypatch.setattr(
        ENGINES.get("toy_engine"), "reloadable", lambda self, device: {"prefill"} if device.kind == "cpu" else set()
    )


def settings_of(plan):
    return [[cell.parameters["engine"]["prefill"] for cell in plan.members[shard.name]] for shard in plan.shards]


def test_settings_of_an_engine_are_shards_of_their_own(toys):
    assert settings_of(toys.plan(TWO)) == [["sdpa", "sdpa"], ["eager", "eager"]] * 2


def test_settings_that_a_process_can_change_share_a_shard_one_after_the_other(toys, reloading):
    plan = toys.plan(TWO)
    assert settings_of(plan) == [["sdpa", "sdpa", "eager", "eager"]] * 2
    assert [(shard.model, shard.engine) for shard in plan.shards] == [
        ("small", "toy_engine, 2 settings"), ("Qwen/Qwen3-8B", "toy_engine, 2 settings"),
    ]  # fmt: skip
    assert len(toys.plan(TWO.replace("device: cpu", "device: h100")).shards) == 4


def test_the_bound_on_a_shards_cells_holds_for_all_settings_together(toys, reloading):
    plan = toys.plan("shard: {max_cells: 3}\n" + TWO)
    assert settings_of(plan) == [["sdpa", "sdpa", "eager"], ["eager"]] * 2
    assert [shard.engine for shard in plan.shards[:2]] == ["toy_engine, 2 settings", "toy_engine(prefill=eager)"]


def test_vllm_changes_what_its_scheduler_and_pool_are_made_with_and_on_cpus_alone():
    changes = VLLM().reloadable(Device("here", "cpu"))
    assert {"block_size", "max_num_batched_tokens", "enable_prefix_caching"} < changes
    kept = {"threads", "kv_connector", "tensor_parallel_size", "dtype", "kv_cache_dtype", "sliding_window"}
    assert not changes & kept and changes < set(VLLM.__dataclass_fields__)
    assert not VLLM().reloadable(Device("there", "cuda"))
