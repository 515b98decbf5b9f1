"""Rows of cells that were handed out together: one part of the store, or nothing."""

import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.run import worker as working
from kvfrontier.run.worker import Task
from kvfrontier.store.parts import list_parts, read_part
from kvfrontier.store.rows import loose_files, read_table
from tiny_project import SPEED, TinyProject


@pytest.fixture
def trial(tmp_path):
    project = TinyProject(tmp_path)
    cells = project.cells(SPEED, engine="simulator", seed=list(range(6)))
    return project, [Task(cell, 1) for cell in cells]


def names(tasks):
    return sorted(task.planned.fingerprint for task in tasks)


def test_a_bundle_is_one_part_of_its_group_and_a_cell_alone_is_a_file(trial):
    project, tasks = trial
    worker = project.worker()
    reports = worker.run_bundle(tasks[:5], 1)
    (part,) = list_parts(project.results, "abcdef01")
    assert sorted(read_part(part)["fingerprint"].to_pylist()) == names(tasks[:5]) and not loose_files(project.results)
    assert read_part(part)["status"].to_pylist() == [report.status for report in reports]
    assert len(worker.run_bundle(tasks[5:], 1)) == 1
    assert [path.stem for path in loose_files(project.results)] == names(tasks[5:])
    rows, damaged = read_table(project.results)
    assert sorted(rows["fingerprint"].to_pylist()) == names(tasks) and not damaged


def test_it_ends_when_its_time_is_over_and_what_ran_is_stored(trial, monkeypatch):
    project, tasks = trial
    monkeypatch.setattr(working, "BUNDLE_S", 0.0)
    assert len(project.worker().run_bundle(tasks, 1)) == 1
    assert read_table(project.results)[0]["fingerprint"].to_pylist() == [tasks[0].planned.fingerprint]


def test_one_that_cannot_be_stored_stops_the_shard(trial, monkeypatch):
    project, tasks = trial

    def full(*_):
        raise Unavailable("the disk is full")

    monkeypatch.setattr(working, "write_part", full)
    (report,) = project.worker().run_bundle(tasks, 1)
    assert report.fatal == "the disk is full" and not list_parts(project.results)
