"""A stored row is enough to run its cell again, in a project that knows nothing of it any more."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from click.testing import CliRunner
from kvfrontier.cli import kvfrontier
from kvfrontier.errors import KVFrontierError
from kvfrontier.plan.catalog import load_data
from kvfrontier.plan.project import Project
from kvfrontier.run.rerun import CannotRerun, Rerun
from kvfrontier.store.rows import read_table, write_row
from kvfrontier.store.selection import NotFound, find_rows
from tiny_project import SPEED, TinyProject


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A measured row (torch, h2o), a modelled one, one that ran out of memory; then the configuration goes."""
    tiny = TinyProject(tmp_path_factory.mktemp("project"))
    worker = tiny.worker()
    rows = {}
    rows["torch"] = tiny.run(worker, tiny.cells(SPEED, strategy=[{"name": "h2o", "budget": 0.5}])[0])[1]
    modelled = tiny.cells(SPEED, engine="simulator", device="fake")[0]
    rows["model"] = tiny.run(worker, modelled)[1]
    large = SPEED | {"batch_size": 4096, "context_tokens": 4096}  # more than the device of the cost model has
    rows["oom"] = tiny.run(worker, tiny.cells(large, engine="simulator", device="fake")[0])[1]
    assert [row["status"] for row in rows.values()] == ["ok", "ok", "oom"]
    shutil.rmtree(tiny.root / "config")
    (tiny.root / "config").mkdir()
    return tiny, rows


def ask(tiny: TinyProject, *arguments: str):
    """Call `kvfrontier rerun` in that project."""
    environment = {"KVFRONTIER_ROOT": str(tiny.root), "KVFRONTIER_RESULTS": None, "OMP_NUM_THREADS": "1"}
    return CliRunner(env=environment).invoke(kvfrontier, ["rerun", *arguments])


@pytest.mark.parametrize("name", ["torch", "model", "oom"])
def test_a_row_is_reproduced_without_any_configuration(measured, name):
    tiny, rows = measured
    before = read_table(tiny.results)[0]
    done = ask(tiny, rows[name]["fingerprint"][:12], "--times", "1000")
    assert done.exit_code == 0, done.output
    assert "Reproduced." in done.output and "The same code version" in done.output
    assert rows[name]["cell_id"] and f"Now   {rows[name]['status']}" in done.output
    assert read_table(tiny.results)[0].equals(before), "nothing is stored"
    if name == "torch":
        assert "kept_tokens" in done.output and "equal" in done.output and "differ" not in done.output


def changed(tiny: TinyProject, row: dict, **columns) -> str:
    """Store the row once more under another fingerprint, with some columns changed; returns that."""
    fingerprint = os.urandom(16).hex()
    write_row(tiny.results, row | {"fingerprint": fingerprint} | columns)
    return fingerprint


def test_other_numbers_are_not_a_reproduction(measured):
    tiny, rows = measured
    values = [{**item, "value": item["value"] * 2} for item in rows["model"]["measurements"]]
    done = ask(tiny, changed(tiny, rows["model"], measurements=values))
    assert done.exit_code == 1 and "Not reproduced." in done.output
    assert "kept_tokens: 8 of 8 values differ" in done.output and "ttft_s: 2 of 2 values differ" in done.output


def test_another_status_is_not_a_reproduction(measured):
    tiny, rows = measured
    done = ask(tiny, changed(tiny, rows["model"], status="error", reason="no such luck", measurements=[]))
    assert done.exit_code == 1 and "the row's status is error, now it is ok" in done.output


def test_what_differs_is_said_before_anything_runs(measured, tmp_path):
    tiny, rows = measured
    row = rows["model"]
    parts = row["parts"] | {"strategy_code": "0ld", "package:gone": "1.0"}
    provenance = row["provenance"] | {"host": "elsewhere", "git_revision": "ab" * 20 + " with local changes"}
    done = ask(tiny, changed(tiny, row, parts=parts, provenance=provenance), "--dry-run")
    assert done.exit_code == 0 and "Running" not in done.output
    for words in ("strategy_code", "0ld", "package:gone", "elsewhere"):
        assert words in done.output
    assert f"git worktree add ../kvfrontier-abababab {'ab' * 20} (it had local changes" in done.output


def test_a_row_without_its_entries_says_so(measured):
    tiny, rows = measured
    done = ask(tiny, changed(tiny, rows["model"], provenance={"host": "here"}))
    assert isinstance(done.exception, CannotRerun) and "`model_entry`" in str(done.exception)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"cell": "{}"}, "cannot be read"),
        ({"cell": "[1]"}, "cannot be read"),
        ({"cell_id": "0" * 20}, "hashes to"),
        ({"provenance": {"model_entry": "{", "device_entry": "{}"}}, "no JSON"),
        ({"provenance": {"model_entry": '{"hub": "x/y"}', "device_entry": '{"kind": "cpu"}'}}, "revision"),
        ({"provenance": {"model_entry": "[1]", "device_entry": '{"kind": "cpu"}'}}, "a mapping"),
    ],
)
def test_a_row_that_was_tampered_with_is_refused_in_words(measured, columns, words):
    tiny, rows = measured
    done = ask(tiny, changed(tiny, rows["model"], **columns))
    assert isinstance(done.exception, KVFrontierError) and words in str(done.exception), repr(done.exception)


def test_a_plugin_that_is_gone_names_the_code_that_had_it(measured):
    tiny, rows = measured
    cell = json.loads(rows["model"]["cell"]) | {"strategy": {"name": "h20"}}
    row = rows["model"] | {"provenance": rows["model"]["provenance"] | {"git_revision": "cd" * 20}}
    from kvfrontier.plan.cell import Cell

    row |= {"cell": json.dumps(cell), "cell_id": Cell.from_dict(cell).cell_id}
    done = ask(tiny, changed(tiny, row))
    assert "Did you mean 'h2o'?" in str(done.exception) and f"kvfrontier-cdcdcdcd {'cd' * 20}" in str(done.exception)


def test_a_trace_of_a_row_lies_in_the_checkout(measured, tmp_path):
    tiny, rows = measured
    (tiny.root / "mine.csv").write_text("arrival_s,context_tokens,output_tokens\n0,5,5\n")
    provenance = rows["torch"]["provenance"] | {"data_entries": json.dumps({"mine": {"trace": "mine.csv"}})}
    rerun = Rerun(rows["torch"] | {"provenance": provenance}, Project.at(tiny.root), tmp_path)
    assert load_data(rerun.inner)["mine"].trace == tiny.root / "mine.csv"


def test_remote_code_of_a_row_runs_only_when_told(measured):
    tiny, rows = measured
    entry = json.dumps({"folder": "weights", "trust_remote_code": True})
    provenance = rows["torch"]["provenance"] | {"model_entry": entry}
    done = ask(tiny, changed(tiny, rows["torch"], provenance=provenance))
    assert isinstance(done.exception, CannotRerun) and "--trust-remote-code" in str(done.exception)


def test_a_cell_that_takes_too_long_is_a_timeout(measured, tmp_path):
    tiny, rows = measured
    rerun = Rerun({**rows["torch"], "campaign": "trial"}, Project.at(tiny.root), tmp_path)
    again = rerun.run(timeout_s=0.05)
    assert (again["status"], again["reason_class"]) == ("timeout", "Timeout")


def test_rows_are_found_by_the_beginning_of_their_fingerprint(measured):
    tiny, rows = measured
    project = Project.at(tiny.root)
    assert find_rows(project, rows["model"]["fingerprint"][:8].upper())["campaign"].to_pylist() == ["trial"]
    with pytest.raises(NotFound, match="no results of a campaign 'other'"):
        find_rows(project, rows["model"]["fingerprint"], "other")
    with pytest.raises(NotFound, match="is no fingerprint"):
        find_rows(project, "../../etc")
    twins = [f"{'e' * 8}{number:024x}" for number in (1, 2)]
    for twin in twins:
        write_row(tiny.results, rows["model"] | {"fingerprint": twin})
    with pytest.raises(NotFound, match="begins 2 fingerprints"):
        find_rows(project, "eeee")
