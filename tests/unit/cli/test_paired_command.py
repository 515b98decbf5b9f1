"""`kvfrontier paired` as a user meets it."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner
from kvfrontier.cli import kvfrontier
from kvfrontier.errors import KVFrontierError
from kvfrontier.store.database import build_database
from synthetic import write_campaign


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = write_campaign(tmp_path_factory.mktemp("paired") / "results")
    build_database(folder)
    return folder.parent


@pytest.fixture(autouse=True)
def project(results, tmp_path, monkeypatch):
    (tmp_path / "config" / "campaigns").mkdir(parents=True)
    (tmp_path / "config" / "campaigns" / "synthetic.yaml").write_text("name: synthetic\n")
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.setenv("KVFRONTIER_RESULTS", str(results))


def call(*arguments: str) -> str:
    result = CliRunner().invoke(kvfrontier, ["paired", "synthetic", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_without_a_word_it_is_the_full_cache_that_all_are_compared_with():
    text = call()
    assert "retention_correct against full · test-alpha" in text and "kl_divergence" not in text
    assert "McNemar" in text and "Not told apart does not mean equal" in text


def test_places_of_the_fact_have_lines_of_their_own_when_asked():
    asked = call("--against", "h2o", "--metric", "retention_correct", "--by-phase")
    assert "depth=0.5" in asked and "depth=0.5" not in call("--against", "h2o", "--metric", "retention_correct")


def test_other_programs_get_every_number():
    listed = json.loads(call("--against", "h2o", "--format", "json"))
    rows = list(csv.DictReader(io.StringIO(call("--against", "h2o", "--format", "csv"))))
    assert len(listed) == len(rows) > 10 and {row["reference"] for row in listed} == {"h2o"}
    assert float(rows[0]["difference"]) == listed[0]["difference"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--metric", "retention_corect"], "Did you mean 'retention_correct'"),
        (["--metric", "ttft_s"], "Times are compared by `kvfrontier compare`"),
        (["--against", "h3o"], "Did you mean 'h2o'"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(arguments, said):
    with pytest.raises(KVFrontierError, match=said):
        call(*arguments)
