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
