"""The engine kvpress in its own environment, which is made here if need be: against ours, in a campaign, with typos."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import ConfigError
from kvfrontier.plan.disk import read_index
from kvfrontier.plan.environment import Environment
from kvfrontier.registry import STRATEGIES
from kvfrontier.sources.environment import make
from kvfrontier.store.rows import read_table
from kvpress_model import same_llama, same_prompt
from tiny_project import SPEED, TinyProject

pytestmark = [pytest.mark.kvpress, pytest.mark.timeout(900)]
TESTS = Path(__file__).parents[1]
OURS = {
    "full": ("full", {}),
    "snapkv": ("snapkv", {"budget": 16, "window_tokens": 6, "pooling": "avg", "kernel_size": 5}),
}


@pytest.fixture(scope="module")
def environment():
    environment = Environment("kvpress")
    make(environment)
    return environment


@pytest.fixture(scope="module")
def theirs(environment):
    code = environment.variables()["PYTHONPATH"]
    told = subprocess.run(
        [environment.python, TESTS / "kvpress_inside.py"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{code}"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", OURS)
def test_the_same_tokens_stay_and_the_same_logits_come(theirs, name):
    strategy, settings = OURS[name]
    sequences = TorchSession(same_llama()).open(STRATEGIES.get(strategy)(**settings))
    logits = [sequences.prefill([same_prompt()], reserve_tokens=3), *(sequences.decode([t]) for t in (5, 9, 12))]
    kept = [[[place for place in head if place >= 0] for head in layer[0].tolist()]
            for layer in sequences.kept_positions()]  # fmt: skip
    assert kept == theirs[name]["kept"]
    torch.testing.assert_close(torch.cat(logits), torch.tensor(theirs[name]["logits"]), atol=1e-3, rtol=1e-3)


def test_a_campaign_runs_presses_beside_the_full_cache(environment, tmp_path):
    project = TinyProject(tmp_path)
    workloads = [
        SPEED,
        {"name": "fidelity", "text": "generated", "context_tokens": 64, "continuation_tokens": 4, "documents": 2},
    ]
    press = {"name": "kvpress", "press": {"name": "AdaKVPress", "press": "KnormPress"}, "budget": 0.25}
    project.cells(*workloads, engine="kvpress", strategy=["full", press, "h2o"])
    measure = [Path(sys.executable).with_name("kvfrontier"), "measure", "trial"]
    variables = {**os.environ, "KVFRONTIER_ROOT": str(tmp_path), "KVFRONTIER_WORKERS": "1"}
    for shard in read_index(project.results).shards:
        told = subprocess.run([*measure, shard.name], env=variables, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
    table, _ = read_table(project.results)
    rows = [{**row, "cell": json.loads(row["cell"])} for row in table.to_pylist()]
    found = {(row["cell"]["strategy"]["name"], row["cell"]["workload"]["name"]): row for row in rows}
    assert len(found) == 6
    for (strategy, workload), row in found.items():
        if strategy == "h2o":
            assert row["status"] == "unsupported" and "runs presses and the full cache" in row["reason"]
            continue
        assert row["status"] == "ok", row["reason_detail"]
        facts = dict(row["provenance"])
        assert facts["environment"] == environment.folder.name
        assert {name: facts[name] for name in ("kvpress", "transformers")} == {
            name: environment.version(name) for name in ("kvpress", "transformers")
        }
        budget = (64 + 7 if workload == "speed" else 64 + 4) * row["achieved_budget"]
        assert round(budget) == {"full": 64, "kvpress": 16}[strategy] + (7 if workload == "speed" else 4)
        held = {value["metric"]: value["value"] for value in row["measurements"]}
        assert held["kv_device_bytes"] == held["kv_full_bytes"], "it masks: all bytes are kept, and told"
        assert bool(held["kv_masked_bytes"]) == (strategy == "kvpress")


@pytest.mark.parametrize(
    ("press", "budget", "words"),
    [
        ("SnapKVPres", 0.3, "there is no 'SnapKVPres'. Did you mean 'SnapKVPress'?"),
        ({"name": "SnapKVPress", "windowsize": 8}, 0.3, "not 'windowsize'. Did you mean 'window_size'?"),
        ({"name": "AdaKVPress", "press": "TOVAPres"}, 0.3, "Did you mean 'TOVAPress'?"),
        ("AdaKVPress", 0.3, "AdaKVPress with press, without which it cannot be"),
        ("ThinKPress", 0.3, "budget: null with ThinKPress"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(environment, tmp_path, press, budget, words):
    project = TinyProject(tmp_path)
    with pytest.raises(ConfigError) as told:
        project.cells(SPEED, engine="kvpress", strategy=[{"name": "kvpress", "press": press, "budget": budget}])
    assert words in str(told.value) and "axes.strategy[0]" in str(told.value)
