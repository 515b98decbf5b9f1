"""What Snakemake decides on: a campaign that is done stays done, whatever happens to files, folders and Snakemake.

With a copy of the package that may be edited. `test_invalidation.py` has the whole matrix of what kvfrontier decides.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from copied import Copied
from kvfrontier.store.rows import read_table

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(900)]
NOTHING = "Nothing to be done"
STRATEGIES = ("full", "streaming_llm", "h2o")
AXES = {
    "strategy": ["full", {"name": "streaming_llm", "budget": 0.25}, {"name": "h2o", "budget": 0.25}],
    "workload": [{"name": "nap"}],
}


class Running(Copied):
    """Counts the rows that each run adds."""

    def __init__(self, root: Path, counted: Counter[str] | None = None):
        super().__init__(root)
        self.counted: Counter[str] = counted or Counter()

    def is_up_to_date(self) -> bool:
        return NOTHING in self.snakemake("-n").stdout

    def measured(self) -> dict[str, int]:
        """Run everything; the rows this has added, by strategy."""
        told = self.run(*self.command(seconds=280))
        assert told.returncode == 0, told.stdout
        rows, damaged = read_table(self.results, ["cell"])
        assert not damaged
        names = Counter(json.loads(cell)["strategy"]["name"] for cell in rows["cell"].to_pylist())
        added, self.counted = names - self.counted, names
        return dict(added)


def test_what_is_done_stays_done(tmp_path):
    space = Running(tmp_path / "here")
    space.campaign(AXES)
    assert space.measured() == dict.fromkeys(STRATEGIES, 1)

    # Comments, docstrings, layout, order of keys and axes, other times, another folder.
    space.edit("strategies/h2o.py", "from __future__", "# Another comment.\n\nfrom   __future__")
    space.edit("strategies/h2o.py", '"""H2O: heavy hitters', '"""H2O. Heavy hitters')
    turned = dict(reversed(AXES.items()))
    space.campaign({**turned, "strategy": AXES["strategy"][::-1]})
    space.touch_everything()
    (tmp_path / "here").rename(tmp_path / "there")
    space = Running(tmp_path / "there", space.counted)
    assert space.is_up_to_date()

    # Another Snakemake: what this one has noted of its jobs says something else, or nothing.
    notes = [path for path in (space.root / ".snakemake" / "metadata").rglob("*") if path.is_file()]
    assert notes
    for note in notes:
        noted = json.loads(note.read_text())
        assert {"code", "params"} <= set(noted)
        note.write_text(json.dumps({**noted, "version": 99, "record_format_version": 99, "code": "x", "params": ["x"]}))
    assert space.is_up_to_date()
    shutil.rmtree(space.root / ".snakemake")
    assert space.is_up_to_date()

    # A fresh clone, into which the results were moved.
    git(space.root, "init", "-q")
    git(space.root, "add", "config", "kvfrontier", "sitecustomize.py")
    git(space.root, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-q", "-m", "All")
    git(tmp_path, "clone", "-q", "there", "clone")
    shutil.move(space.root / "results", tmp_path / "clone" / "results")
    space = Running(tmp_path / "clone", space.counted)
    assert space.is_up_to_date()

    # Code of a strategy: its cells alone, and the report anew.
    space.edit("strategies/h2o.py", "@strategy", "EDITED = True\n\n\n@strategy")
    assert space.measured() == {"h2o": 1}

    # Comments in every file of the package, those that draw among them: the report is drawn again, nothing is measured.
    drawn = (space.results / "report.html").stat().st_mtime_ns
    space.comment_everything()
    assert space.measured() == {}
    assert (space.results / "report.html").stat().st_mtime_ns > drawn
    assert space.is_up_to_date()


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
