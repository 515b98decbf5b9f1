"""A database that is damaged, another's, of other rows or from the future is found out."""

import os
import subprocess
import sys
import time

import duckdb
import pytest
from kvfrontier.plan.disk import prepare
from kvfrontier.run.outdated import is_outdated
from kvfrontier.store.database import build_database, database_path
from kvfrontier.store.files import LEFT_AFTER_S, drop_leftovers
from toy_project import CAMPAIGN, ToyProject, planned_cells, store, toy_plugins

WRITER = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1])
print("open", flush=True)
input()
"""


@pytest.fixture
def published(tmp_path):
    """A campaign of which all but one row are stored, and its database."""
    with toy_plugins():
        toys = ToyProject(tmp_path)
        toys.campaign_text(CAMPAIGN)
        index = prepare(toys.project, "trial")
        cells = planned_cells(index)
        for cell in cells[1:]:
            store(index, cell)
        build_database(index.campaign_dir)
        yield index, cells[0]


def test_one_that_is_whole_and_of_these_rows_stays(published):
    index, _ = published
    assert not is_outdated(index.campaign_dir, [])
    assert database_path(index.campaign_dir).exists()


def test_one_that_lacks_a_row_is_outdated(published):
    index, missing = published
    store(index, missing)
    assert is_outdated(index.campaign_dir, [])
    assert database_path(index.campaign_dir).exists(), "it answers until there is another one"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.99])
def test_one_with_a_few_wrong_bytes_or_without_its_end_is_removed_or_as_good_as_before(published, share):
    index, _ = published
    path = database_path(index.campaign_dir)
    whole = path.read_bytes()
    place = int(len(whole) * share)
    for damaged in (whole[:place], whole[:place] + b"\x5a" * 64 + whole[place + 64 :]):
        path.write_bytes(damaged)
        is_outdated(index.campaign_dir, [])
        if path.exists():  # a block that holds nothing
            with duckdb.connect(path, read_only=True) as connection:
                assert connection.execute("SELECT count(*) FROM cells").fetchall()


def test_a_folder_or_a_dangling_link_in_its_place_is_removed(published):
    index, _ = published
    path = database_path(index.campaign_dir)
    path.unlink()
    (path / "inside").mkdir(parents=True)
    is_outdated(index.campaign_dir, [])
    assert not os.path.lexists(path)
    path.symlink_to("nowhere")
    is_outdated(index.campaign_dir, [])
    assert not os.path.lexists(path)


def test_one_that_somebody_writes_to_now_is_left_alone(published):
    index, _ = published
    path = database_path(index.campaign_dir)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout.readline()
        assert not is_outdated(index.campaign_dir, [])
        assert path.exists()
    finally:
        writer.communicate("\n")


FILES = ["trial.duckdb", "report.html", "verdict.txt", "ledgers/a.json", "inputs/model/toy.json"]


@pytest.mark.parametrize("name", FILES)
def test_what_is_from_the_future_is_of_the_past_from_then_on(published, name):
    index, _ = published
    path = index.campaign_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (time.time() + 9e6,) * 2)
    assert is_outdated(index.campaign_dir, [str(path)])
    assert path.stat().st_mtime < time.time() - 9e6
    assert not is_outdated(index.campaign_dir, [str(path)]), "once is enough"


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path):
    left = [tmp_path / name for name in ("cells/ab/.ab12.parquet.77.tmp", "plan/cells.parquet.77.partial")]
    folder = tmp_path / ".building-x7"
    kept = [tmp_path / name for name in ("cells/ab/ab12.parquet", "store/a.parquet.damaged", ".lock")]
    for path in (*left, *kept, folder / "trial.duckdb"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    drop_leftovers(tmp_path)
    assert all(path.exists() for path in (*left, *kept, folder)), "they may still be written to"
    for path in (*left, *kept, folder):
        os.utime(path, (time.time() - LEFT_AFTER_S - 9,) * 2)
    drop_leftovers(tmp_path)
    assert not any(path.exists() for path in (*left, folder))
    assert all(path.exists() for path in kept)
