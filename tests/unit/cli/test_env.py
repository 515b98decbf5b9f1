"""Which environment a name stands for."""

import pytest
from click.testing import CliRunner
from kvfrontier.cli import env
from kvfrontier.plan import environment as environments
from kvfrontier.sources import environment as making


@pytest.mark.parametrize(("has_driver", "kind"), [(False, "cpu"), (True, "cuda")])
def test_of_a_pair_it_is_this_machines(tmp_path, monkeypatch, has_driver, kind):
    monkeypatch.setattr(environments, "PINS", tmp_path)
    monkeypatch.setattr(env, "NVIDIA", tmp_path if has_driver else tmp_path / "none")
    monkeypatch.setattr(making, "make", lambda environment: f"made {environment.name}")
    for name in ("pair-cpu", "pair-cuda", "alone"):
        (tmp_path / f"{name}.txt").touch()
    told = {name: CliRunner().invoke(env.command, ["make", name]).output for name in ("pair", "pair-cuda", "alone")}
    assert told["pair"] == f"environment pair-{kind}: made pair-{kind}\n"
    assert told["pair-cuda"] == "environment pair-cuda: made pair-cuda\n"
    assert told["alone"] == "environment alone: made alone\n"
    refused = CliRunner().invoke(env.command, ["make", "pairs"])
    assert refused.exit_code and "pair-cpu, pair-cuda" in str(refused.exception)


def test_a_campaign_names_those_that_its_engines_need(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "PINS", tmp_path)
    monkeypatch.setattr(environments.Environment, "is_made", property(lambda self: self.name == "vllm-cpu"))
    monkeypatch.setattr(making, "make", lambda environment: f"made {environment.name}")
    for name in ("vllm-cpu", "vllm-cuda", "kvpress"):
        (tmp_path / f"{name}.txt").touch()
    campaign = tmp_path / "three.yaml"
    campaign.write_text(
        "axes:\n  model: [smollm2-135m]\n  engine: [torch, vllm]\n  device: [cpu, h100]\n  strategy: [full]\n"
        "  workload: [{name: speed}]\n"
    )
    assert env.needed_by(str(campaign)) == ["vllm-cpu", "vllm-cuda"]
    told = CliRunner().invoke(env.command, ["make", "--for", str(campaign)])
    assert (told.exit_code, told.output) == (0, "environment vllm-cuda: made vllm-cuda\n")  # the other one is there
    assert CliRunner().invoke(env.command, ["make"]).exit_code == 2
