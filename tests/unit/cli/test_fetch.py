"""`kvfrontier fetch`: receipts, and the list of the cache."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from kvfrontier.cli.fetch import command
from kvfrontier.errors import ConfigError
from tiny import tiny_llama
from toy_tokenizer import toy_tokenizer


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config").mkdir()
    tiny_llama().save_pretrained(tmp_path / "weights")
    toy_tokenizer().save_pretrained(tmp_path / "weights")
    (tmp_path / "config" / "models.yaml").write_text("toy:\n  folder: weights\n")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_a_receipt_is_written_when_the_model_is_there(project):
    receipt = project / "out" / "toy.json"
    result = run("model", "toy", "--receipt", receipt)
    assert result.exit_code == 0, result.output
    content = json.loads(receipt.read_text())
    assert (content["kind"], content["name"], content["path"]) == ("model", "toy", "")
    assert len(content["identity"]) == 64


def test_the_same_model_gives_the_same_receipt(project):
    first, second = project / "1.json", project / "2.json"
    run("model", "toy", "--receipt", first)
    run("model", "toy", "--receipt", second)
    assert first.read_bytes() == second.read_bytes()


def test_a_trace_needs_no_fetching_and_must_be_one(project):
    (project / "config" / "data.yaml").write_text("mine: {trace: mine.csv}\n")
    file, receipt = project / "mine.csv", project / "mine.json"
    assert isinstance(run("data", "mine", "--receipt", receipt).exception, ConfigError) and not receipt.exists()
    file.write_text("arrival_s,context_tokens,output_tokens\n0,5,5\n")
    result = run("data", "mine", "--receipt", receipt)
    assert result.exit_code == 0 and str(file) in result.output
    content = json.loads(receipt.read_text())
    assert (content["kind"], content["name"], len(content["identity"])) == ("data", "mine", 64)


def test_no_receipt_without_the_model(project):
    (project / "weights" / "model.safetensors").unlink()
    result = run("model", "toy", "--receipt", project / "toy.json")
    assert result.exit_code != 0
    assert not (project / "toy.json").exists()


def test_an_unknown_name_gets_the_nearest_spelling(project):
    error = run("model", "toi").exception
    assert isinstance(error, ConfigError)
    assert "Did you mean 'toy'?" in str(error)


def test_the_cache_is_listed_with_sizes(project):
    assert "empty" in run().output
    (project / "cache" / "wheels").mkdir(parents=True)
    (project / "cache" / "wheels" / "a-1.whl").write_bytes(b"x" * 2048)
    assert "2.0 KiB  wheels/a-1.whl" in run().output
