"""Rows by name: fingerprints, commits as git and rows know them, campaigns; and the commands that take such names."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from kvfrontier.cli import kvfrontier
from kvfrontier.metrics import Measurement
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.plan.project import Project
from kvfrontier.plan.revision import current_revision, resolve
from kvfrontier.store.database import build_database
from kvfrontier.store.query import open_database
from kvfrontier.store.rows import write_row
from kvfrontier.store.selection import NotFound, select
from synthetic import PLAN_SCHEMA, planned_cell

OLD, NEW, FOREIGN = "a1" * 20, "b2" * 20, "c3" * 20
CELLS = [Cell("toy", Component("simulator"), "cpu", Component("full"), Component("speed"), seed) for seed in range(4)]


def row_of(cell: Cell, version: str, commit: str, attempt: int = 1, ttft_s: float = 1.0, minutes: int = 0) -> dict:
    return {
        "cell_id": cell.cell_id,
        "fingerprint": f"{version}{cell.cell_id}",
        "parts": {"cell": cell.cell_id, "engine_code": version},
        "cell": json.dumps(cell.as_dict()),
        "status": "ok",
        "source": "measured",
        "attempt": attempt,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes),
        "provenance": {"host": "here", "git_revision": commit},
        "measurements": [Measurement("ttft_s", ttft_s * (1 + repeat / 100), repeat=repeat) for repeat in range(5)],
    }


@pytest.fixture
def project(tmp_path):
    """Campaign `one`: four cells at two commits, of one an attempt more; campaign `two`: a cell from elsewhere."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "config").mkdir()
    project = Project.at(tmp_path)
    for name, version in (("one", "0123456789ab"), ("two", "0123456789ab")):
        planned = [planned_cell(cell) | {"fingerprint": f"{version}{cell.cell_id}"} for cell in CELLS]
        (project.campaign_dir(name) / "plan").mkdir(parents=True)
        table = pa.Table.from_pylist(planned, schema=PLAN_SCHEMA)
        pq.write_table(table, project.campaign_dir(name) / "plan" / "cells.parquet")
    for cell in CELLS:
        write_row(project.campaign_dir("one"), row_of(cell, "feed00000000", OLD))
        write_row(project.campaign_dir("one"), row_of(cell, "0123456789ab", NEW, ttft_s=1.5, minutes=5))
    write_row(project.campaign_dir("one"), row_of(CELLS[0], "0123456789ab", NEW, 2, 1.5, minutes=9))
    write_row(project.campaign_dir("two"), row_of(CELLS[0], "eeee00000000", f"{FOREIGN} with local changes"))
    return project


def test_a_campaign_is_its_current_rows_in_their_last_attempt(project):
    chosen = select(project, "one")
    assert (chosen.kind, len(chosen.rows)) == ("campaign", 4)
    assert sorted(chosen.rows["attempt"].to_pylist()) == [1, 1, 1, 2]
    assert set(chosen.rows["fingerprint"].to_pylist()) == {f"0123456789ab{cell.cell_id}" for cell in CELLS}
    with pytest.raises(NotFound, match="campaign two has no row of a current version"):
        select(project, "two")


def test_a_commit_is_the_rows_that_were_measured_at_it(project):
    assert [len(select(project, name).rows) for name in (OLD, OLD[:6], f"one@{NEW[:8]}")] == [4, 4, 4]
    chosen = select(project, FOREIGN[:8])
    assert "local changes" in chosen.notes[0] and chosen.rows["campaign"].to_pylist() == ["two"]
    with pytest.raises(NotFound, match=r"no row was measured at commit 'abcdef'.*Rows are of"):
        select(project, "one@abcdef")


def test_a_fingerprint_is_found_by_its_beginning(project):
    fingerprint = f"feed00000000{CELLS[2].cell_id}"
    assert select(project, fingerprint[:20]).rows["fingerprint"].to_pylist() == [fingerprint]
    with pytest.raises(NotFound, match="begins 4 fingerprints"):
        select(project, "feed")
    with pytest.raises(NotFound, match="is no campaign with results, no fingerprint and no commit"):
        select(project, "--help; rm")


def test_git_names_are_resolved_where_git_is(tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        call = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()

    assert current_revision(tmp_path) == "" and resolve(tmp_path, "HEAD") == "" and resolve(tmp_path, "AB12") == "ab12"
    git("init", "-q")
    commits = []
    for number in range(2):
        (tmp_path / "file").write_text(str(number))
        git("add", "file")
        git("commit", "-qm", "x")
        commits.append(git("rev-parse", "HEAD"))
    assert [resolve(tmp_path, name) for name in ("HEAD~1", "HEAD", commits[0][:7])] == [*commits, commits[0]]
    assert resolve(tmp_path, "--version") == resolve(tmp_path, "no such branch") == ""
    assert current_revision(tmp_path) == commits[1]
    (tmp_path / "file").write_text("changed")
    assert current_revision(tmp_path) == f"{commits[1]} with local changes"


def ask(project: Project, *arguments: str):
    return CliRunner(env={"KVFRONTIER_ROOT": str(project.root)}).invoke(kvfrontier, arguments)


def test_compare_tells_what_changed_between_two_commits(project):
    done = ask(project, "compare", OLD[:8], "one")
    assert done.exit_code == 0, done.output
    for words in ("commit a1a1a1a1 (campaign one): 4 rows", "engine_code", "+50.00 %", "worse", "1 metric worse"):
        assert words in done.output
    assert ask(project, "compare", OLD[:8], "one", "--fail-on", "worse").exit_code == 1
    assert ask(project, "compare", "one", OLD[:8], "--fail-on", "worse").exit_code == 0
    found = json.loads(ask(project, "compare", OLD[:8], "one", "--format", "json").output)
    assert found["pairs"] == 4 and found["metrics"][0]["verdict"] == "worse" and found["is_worse"]
    lines = list(csv.DictReader(io.StringIO(ask(project, "compare", OLD[:8], "one", "--format", "csv").output)))
    assert [line["level"] for line in lines] == ["metric", *["cell"] * 4]


def test_compare_says_when_there_is_nothing_to_compare(project):
    assert "A and B are the same 4 rows" in ask(project, "compare", "one", f"one@{NEW[:8]}").output
    assert "nothing was measured twice" in ask(project, "compare", "one", "one").output
    cells = [f"feed00000000{cell.cell_id}" for cell in CELLS[:2]]
    pair = ask(project, "compare", *cells).output
    assert "seed" in pair and "Of 1 pair: no metric changed beyond noise" in pair


def test_old_versions_and_attempts_stay_in_history(project):
    folder = project.campaign_dir("one")
    first = row_of(CELLS[1], "0123456789ab", NEW) | {"status": "error", "measurements": []}
    from kvfrontier.store.fold import fold

    for row in (first, row_of(CELLS[1], "0123456789ab", NEW, attempt=2, ttft_s=7.0)):
        write_row(folder, row)
        fold(folder, "toy.simulator.cpu.000-abc", [row["fingerprint"]])
    build_database(folder)
    with open_database(folder) as connection:
        kept = connection.execute(
            "SELECT fingerprint[:4], attempt, status, is_current FROM history WHERE cell_id = ? ORDER BY ALL",
            [CELLS[1].cell_id],
        ).fetchall()
        current = connection.execute(
            "SELECT attempt, status FROM cells WHERE cell_id = ?", [CELLS[1].cell_id]
        ).fetchall()
        values = connection.execute(
            "SELECT median(value) FROM measurements WHERE cell_id = ?", [CELLS[1].cell_id]
        ).fetchone()
    assert kept == [("0123", 1, "error", False), ("0123", 2, "ok", True), ("feed", 1, "ok", False)]
    assert current == [(2, "ok")] and values == (pytest.approx(7.14),)


def test_prune_says_what_would_go_and_deletes_only_when_told(project):
    (project.root / "config" / "campaigns").mkdir()
    (project.root / "config" / "campaigns" / "one.yaml").write_text("{}")
    looked = ask(project, "prune", "one")
    assert looked.exit_code == 0 and "Nothing was deleted" in looked.output and "4" in looked.output
    assert len(select(project, OLD).rows) == 4
    everything = ask(project, "prune", "--all")
    assert "two: no campaign file names it; left alone" in everything.output
    assert ask(project, "prune", "one", "--yes").exit_code == 0
    with pytest.raises(NotFound):
        select(project, OLD)
    assert ask(project, "prune", "--all", "--folders", "--yes").exit_code == 0
    assert not project.campaign_dir("two").exists() and len(select(project, "one").rows) == 4
    assert ask(project, "prune", "one", "--all").exit_code == ask(project, "prune", "--folders").exit_code == 2
