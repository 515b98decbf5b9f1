"""What a person sees of a run: one frame, as text, as JSON and on a terminal; and all that is known of one cell."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from kvfrontier.cli.check import command as check
from kvfrontier.cli.log import command as log
from kvfrontier.cli.report import command as report
from kvfrontier.cli.watch import command as watch
from kvfrontier.run.cell_log import NoSuchCell
from kvfrontier.run.progress import Progress
from kvfrontier.run.verdict import log_file
from kvfrontier.store.database import build_database
from kvfrontier.store.heartbeat import write_heartbeat
from kvfrontier.store.rows import write_row
from rich.console import Console
from synthetic import a_beat, cells, planned_cell, stored_row, write_campaign

SHARD = "test-alpha.torch.cpu.000-0123456789ab"
EVIL = "no such luck \x1b[31m[bold]tag[/bold]\x07"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A campaign whose 35 torch cells are being measured: two in flight, one failed with a hostile message."""
    folder = write_campaign(tmp_path / "results", models=("test-alpha",))
    (tmp_path / "config" / "campaigns").mkdir(parents=True)
    (tmp_path / "config" / "campaigns" / "synthetic.yaml").write_text("name: synthetic\n")
    (tmp_path / "config" / "config.yaml").write_text("campaign: synthetic\n")
    monkeypatch.setenv("KVFRONTIER_ROOT", str(tmp_path))
    monkeypatch.delenv("KVFRONTIER_RESULTS", raising=False)
    now, known = datetime.now(UTC), list(cells(("test-alpha",)))
    failed = {
        "status": "error", "reason": EVIL, "reason_class": "ValueError", "reason_phase": "decode", "attempt": 1,
        "reason_detail": "Traceback (most recent call last):\n  here\nValueError: no such luck", "started_at": now,
        "provenance": {"host": "node7", "slurm_job_id": "4711", "node": "gpu-3"},
    }  # fmt: skip
    write_row(folder, stored_row(known[7], planned_cell(known[7]), 7) | failed)
    beat = a_beat(
        SHARD,
        started_at=now - timedelta(minutes=3),
        measuring_since=now - timedelta(seconds=60),
        updated_at=now,
        counts={"ok": 13},
        settled=0,
        slurm_job_id="4711",
        in_flight={known[3].cell_id: now - timedelta(seconds=42)},
    )
    write_heartbeat(folder, beat)
    path = log_file(folder, SHARD)
    path.parent.mkdir(parents=True)
    lines = [f"2026-01-01 00:00:0{place},000 INFO {known[place].cell_id} ok (1 s)" for place in range(7)]
    lines.append(f"2026-01-01 00:00:07,000 WARNING {known[7].cell_id} error (1 s): {EVIL}")
    lines += ["2026-01-01 00:00:07,001 WARNING Traceback (most recent call last):", "  somewhere"]
    path.write_text("\n".join([*lines, *(line.replace("00:00", "00:01") for line in lines[:6])]) + "\n")
    return folder


def cell(number: int) -> str:
    return list(cells(("test-alpha",)))[number].cell_id


def run(command, *arguments):
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


# watch --------------------------------------------------------------------------------------------------------------


def test_a_frame_as_json(folder):
    seen = json.loads(run(watch, "--json"))
    assert (seen["cells"], seen["done"], seen["in_flight"], seen["left"]) == (42, 41, 1, 0)
    assert seen["by_status"] == {"ok": 39, "oom": 1, "error": 1} and not seen["is_finished"]
    shard = seen["shards"][0]
    assert (shard["shard"], shard["host"], shard["slurm_job_id"]) == (SHARD, "node1", "4711")
    assert shard["cells_per_s"] == pytest.approx(0.2, rel=0.01) and shard["is_running"]
    (flight,) = seen["cells_in_flight"]
    assert flight["cell_id"] == cell(3) and 42 <= flight["seconds"] < 100
    assert [item["status"] for item in seen["failures"]] == ["error", "oom"]


def test_a_frame_as_plain_text(folder):
    text = run(watch, "synthetic", "--once")
    assert "41 of 42 cells, 1 in flight, 0 left" in text
    assert re.search(r"000-0123456789ab +test-alpha +torch +cpu +34 of 35 +2 +12/min .* node1 job 4711", text)
    assert cell(3)[:12] in text and "12/min" in text
    assert f"kvfrontier log {cell(7)[:12]} synthetic" in text
    assert "\x1b" not in text and "\x07" not in text and "[bold]tag[/bold]" in text, "a reason is only text"
    assert max(map(len, text.splitlines())) <= 160


def test_a_finished_campaign_ends_the_watching(folder):
    (folder / "running" / f"{SHARD}.json").unlink()
    write_row(folder, stored_row(list(cells(("test-alpha",)))[3], planned_cell(list(cells(("test-alpha",)))[3]), 3))
    write_row(folder, stored_row(list(cells(("test-alpha",)))[7], planned_cell(list(cells(("test-alpha",)))[7]), 7))
    assert "42 of 42 cells" in run(watch)


def test_on_a_terminal_it_redraws_until_ctrl_c(folder):
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", "from kvfrontier.cli import main; main()", "watch", "--interval", "0.2"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    watching = subprocess.Popen(program, stdout=theirs, stdin=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    screen = b""
    while screen.count(b"1 in flight") < 2:
        screen += os.read(ours, 4096)
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    os.close(ours)
    assert watching.returncode == 130 and b"The run goes on" in errors and b"Traceback" not in errors


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (100, 30), (200, 60)])
def test_a_frame_fits_the_screen(folder, columns, lines):
    from kvfrontier.cli._screen import picture
    from kvfrontier.run.monitor import Monitor

    frame = Monitor(folder, lambda: None).frame()
    many = frame._replace(shards=frame.shards * 40, flights=frame.flights * 30, failures=frame.failures[:1] * 3)
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(picture(many, columns, lines))
    text = console.export_text()
    assert re.search(r"and \d+ more: \d+ wait, \d+ done", " ".join(text.split())), text
    assert len(text.splitlines()) <= lines and max(map(len, text.splitlines())) <= columns
    assert text.splitlines()[-1].startswith("  kvfrontier log "), "what to do next is what must not be cut off"


def test_without_a_plan_it_says_what_to_run(folder):
    (folder / "plan" / "cells.parquet").unlink()
    result = CliRunner().invoke(watch, ["--once"])
    assert "kvfrontier plan synthetic" in str(result.exception)


# log ----------------------------------------------------------------------------------------------------------------


def test_all_that_is_known_of_a_failed_cell(folder):
    (folder.parent / "slurm" / "rule_measure" / SHARD).mkdir(parents=True)
    job_log = folder.parent / "slurm" / "rule_measure" / SHARD / "4711.log"
    job_log.write_text("of the job\n")
    text = run(log, cell(7)[:12], "synthetic")
    for part in (
        "no such luck",
        "ValueError",
        "decode",
        "node7",
        "gpu-3",
        "4711",
        str(job_log),
        str(log_file(folder, SHARD)),
    ):
        assert part in text, part
    assert "Traceback (most recent call last):\n  here\nValueError" in text
    assert f"{cell(6)} ok" in text and f"{cell(7)} error" in text, "the lines around it"
    assert "somewhere" not in text and "\x1b" not in text
    told = json.loads(run(log, cell(7), "--json"))
    assert (told["status"], told["row"]["provenance"]["host"]) == ("error", "node7")


def test_a_cell_that_runs_and_one_by_its_fingerprint(folder):
    assert "in flight    since" in run(log, cell(3)[:8])
    assert "status       ok" in run(log, f"{cell(0)}{'0' * 12}")
    assert "a row of an older campaign" not in run(log, cell(0))
    assert "the row is of an older version" in run(log, "f" * 32)


def test_the_latest_failures_with_the_command_that_shows_more(folder):
    text = run(log)
    assert text.index(cell(7)[:12]) < text.index(cell(5)[:12])
    assert text == run(log, "synthetic") and "\x1b" not in text
    assert [item["status"] for item in json.loads(run(log, "--json"))] == ["error", "oom"]


@pytest.mark.parametrize("word", ["", "zzzz", "%", "_", "'", "../.."])
def test_an_unknown_beginning_is_told_so(folder, word):
    result = CliRunner().invoke(log, ["--", word, "synthetic"])
    assert isinstance(result.exception, NoSuchCell) and "no cell of synthetic" in str(result.exception)


def test_a_mistyped_one_is_met_with_the_nearest(folder):
    right = cell(7)[:12]
    wrong = right[:5] + ("0" if right[5] != "0" else "1") + right[6:]
    result = CliRunner().invoke(log, [wrong])
    assert f"Did you mean '{right}'?" in str(result.exception)


def test_an_ambiguous_one_lists_the_cells(folder):
    first = next(digit for digit in "0123456789abcdef" if sum(cell(n).startswith(digit) for n in range(42)) > 1)
    result = CliRunner().invoke(log, [first])
    assert "begin with" in str(result.exception) and "give more digits" in str(result.exception)
    assert "test-alpha, " in str(result.exception)


def test_a_cell_whose_log_is_gone_or_has_another_name_is_told_all_the_same(folder):
    path = log_file(folder, SHARD)
    path.rename(path.with_name("older.log"))
    assert "older.log" in run(log, cell(7))
    path.with_name("older.log").unlink()
    assert "no such luck" in run(log, cell(7))


def test_failures_lead_there(folder, capsys, monkeypatch):
    index = SimpleNamespace(campaign="synthetic", campaign_dir=folder, max_attempts=2)
    monkeypatch.setattr("kvfrontier.plan.disk.read_index", lambda campaign_dir: index)
    result = CliRunner().invoke(check, ["synthetic"])
    assert result.exit_code == 1 and f"log: kvfrontier log {cell(7)[:12]} synthetic" in result.output
    progress = Progress("toy", 2, Counter(ok=1))
    progress.add("error")
    progress.close("kvfrontier log synthetic")
    assert capsys.readouterr().err.splitlines()[-1] == "  why: kvfrontier log synthetic"


# report -------------------------------------------------------------------------------------------------------------


def test_a_page_of_an_unfinished_campaign_says_so_and_the_final_one_does_not(folder, tmp_path):
    page = tmp_path / "page.html"
    run(report, "synthetic", "--out", str(page))
    text = page.read_text()
    assert "Being measured" in text and "41 of 42 cells, 1 in flight, 0 left" in text
    assert re.search(r"As of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)
    assert "figures/" not in text and not (folder / "figures").exists()
    assert not (folder / "report.html").exists() and not (folder / "synthetic.duckdb").exists()
    assert run(report, "--live").strip() == str(folder / "live.html")

    (folder / "running" / f"{SHARD}.json").unlink()
    for number in (3, 7):
        known = list(cells(("test-alpha",)))[number]
        write_row(folder, stored_row(known, planned_cell(known), number))
    build_database(folder)
    run(report, "synthetic")
    assert 'class="banner"' not in (folder / "report.html").read_text()
