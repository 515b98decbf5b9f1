"""Where and how a cluster runs a campaign says nothing of the numbers: it makes no measurement stale."""

import pytest
from kvfrontier.errors import ConfigError
from kvfrontier.plan.catalog import load_devices
from kvfrontier.plan.device import SlurmPlace
from kvfrontier.plan.disk import prepare
from toy_project import CAMPAIGN, DEVICES


def fingerprints(plan):
    return {cell.cell_id: cell.fingerprint for cell in plan.cells}


def test_where_slurm_has_a_device_makes_nothing_stale(toys):
    before = toys.plan()
    place = "{partition: fast, constraint: 'h100&ib', gpu_model: h100}"
    toys.write("devices.yaml", DEVICES.replace("kind: cpu", f"kind: cpu, slurm: {place}"))
    assert load_devices(toys.project)["cpu"].slurm == SlurmPlace("fast", "h100&ib", "h100")
    after = toys.plan()
    assert fingerprints(after) == fingerprints(before)
    assert [shard.name for shard in after.shards] == [shard.name for shard in before.shards]


MODEL = """
small:
  shape: {layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 64, vocab: 97, max_positions: 2048, parameters: 9}
"""
MODELLED = """
device: cpu
axes:
  model: [small]
  engine: [simulator]
  strategy: [full]
  workload: [{name: speed, context_tokens: 512, text: generated}]
"""


def test_a_modelled_device_is_known_by_its_rates_and_not_by_its_place(toys):
    toys.write("models.yaml", MODEL)
    rates = "cpu: {kind: cpu, memory_bytes_per_s: 1e9, flops_per_s: 1e9%s}\n"
    toys.write("devices.yaml", rates % "")
    before = fingerprints(toys.plan(MODELLED))
    toys.write("devices.yaml", rates % ", slurm: {partition: fast}")
    assert fingerprints(toys.plan(MODELLED)) == before
    toys.write("devices.yaml", rates % ", step_overhead_s: 0.5")
    assert fingerprints(toys.plan(MODELLED)) != before


def test_workers_and_nodes_of_a_job_make_nothing_stale_and_are_in_the_plan_on_disk(toys):
    toys.campaign_text(CAMPAIGN)
    before = prepare(toys.project, "trial")
    assert (before.workers, before.nodes) == (None, 1)
    toys.campaign_text(CAMPAIGN + "shard: {workers: 4, nodes: 2}\n")
    after = prepare(toys.project, "trial")
    assert (after.workers, after.nodes) == (4, 2)
    assert after.shards == before.shards


@pytest.mark.parametrize(
    ("place", "key", "words"),
    [
        ("{partitoin: fast}", "slurm.partitoin", "Did you mean 'partition'"),
        ("{gpu_model: a100-sxm4}", "slurm.gpu_model", "use `constraint`"),
        ("{partition: ''}", "slurm.partition", "devices.yaml"),
        ("fast", "slurm", "devices.yaml"),
    ],
)
def test_a_mistake_in_it_is_named(toys, place, key, words):
    toys.write("devices.yaml", DEVICES.replace("kind: cpu", f"kind: cpu, slurm: {place}"))
    with pytest.raises(ConfigError) as told:
        load_devices(toys.project)
    assert f"cpu.{key}" in str(told.value) and words in str(told.value)


@pytest.mark.parametrize("setting", ["workers: 0", "nodes: 0", "nodes: two", "workers: 1.5"])
def test_impossible_numbers_of_workers_and_nodes_are_mistakes(toys, setting):
    assert f"shard.{setting.partition(':')[0]}" in toys.problems(CAMPAIGN + f"shard: {{{setting}}}\n")
