"""What the Snakefile asks for while another process runs the same campaign: nothing of that run may change."""

import os
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from kvfrontier.errors import ConfigError
from kvfrontier.run.session import chosen_campaign, open_campaign
from kvfrontier.store.ledger import ledger_file
from kvfrontier.store.lock import Busy
from workspace import Workspace

SPEED = {"name": "speed", "text": "generated", "context_tokens": 64, "output_tokens": 2}


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A campaign that is being run: its files, and a ledger whose rows are not (yet) there."""
    space = Workspace(tmp_path)
    space.campaign({"workload": [SPEED]})
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.delenv("KVFRONTIER_RESULTS", raising=False)
    monkeypatch.chdir(tmp_path)
    files = open_campaign("trial", is_main=True, is_dry=False)
    ledger = ledger_file(files.campaign_dir, files.index.shards[0].name)
    ledger.parent.mkdir(exist_ok=True)
    ledger.write_text("{}")
    yield space, files, ledger
    with suppress(OSError):
        os.close(files.lock)  # unless the test has ended the run


def test_a_dry_run_leaves_the_ledgers_of_a_run_alone(running):
    _, files, ledger = running
    assert open_campaign("trial", is_main=True, is_dry=True).index == files.index
    assert ledger.exists()


def test_a_dry_run_without_a_run_shows_what_is_to_be_measured_again(running):
    _, files, ledger = running
    os.close(files.lock)
    open_campaign("trial", is_main=True, is_dry=True)
    assert not ledger.exists()


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_campaign_that_was_edited_is_not_planned_under_a_run(running, is_dry):
    space, files, _ = running
    space.campaign({"workload": [SPEED], "seed": [0, 1]})
    with pytest.raises(Busy, match="planned when it has ended"):
        open_campaign("trial", is_main=True, is_dry=is_dry)
    assert space.index().shards == files.index.shards


def test_a_misspelt_config_key_does_not_run_the_default_campaign():
    assert chosen_campaign({"campaign": "mine"}) == "mine"
    assert chosen_campaign({}) is None
    with pytest.raises(ConfigError, match=r"campagn: got 'mine'; expected campaign=NAME.* Did you mean 'campaign'"):
        chosen_campaign({"campagn": "mine"})


def test_a_second_run_is_told_who_holds_the_campaign(running):
    with pytest.raises(Busy, match=f"process {os.getpid()}"):
        open_campaign("trial", is_main=True, is_dry=False)


def test_the_database_and_report_are_due_when_the_code_that_makes_them_changes(running, monkeypatch):
    _, files, _ = running
    os.close(files.lock)
    before = Path(files.published).read_text()
    monkeypatch.setattr("kvfrontier.run.session._presentation", lambda: "other code")
    files = open_campaign("trial", is_main=True, is_dry=True)
    assert Path(files.published).read_text() != before


def test_a_database_that_is_none_is_built_again(running):
    _, files, _ = running
    os.close(files.lock)
    path = files.campaign_dir / "trial.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    open_campaign("trial", is_main=True, is_dry=True)
    assert path.exists()
    path.write_bytes(b"x" * 5000)
    open_campaign("trial", is_main=True, is_dry=True)
    assert not path.exists()
