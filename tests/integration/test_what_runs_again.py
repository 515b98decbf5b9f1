"""What a change measures again, on a project with a copy of the package: the cells it touches, and no others."""

import os
import shutil
from collections import Counter
from pathlib import Path

import kvfrontier
import pytest
from kvfrontier.store.rows import read_table
from workspace import Workspace

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(300)]
NOTHING = "Nothing to be done"


class Copied(Workspace):
    """A workspace whose processes import their own copy of kvfrontier."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.counted: Counter[str] = Counter()
        if not self.package.exists():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(kvfrontier.__file__).parent, self.package, ignore=ignored)

    @property
    def package(self) -> Path:
        return self.root / "kvfrontier"  # the root comes first on the search path

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.package / file).read_text()
        assert old in text, f"{file} has no {old!r}"
        (self.package / file).write_text(text.replace(old, new))

    def is_up_to_date(self) -> bool:
        return NOTHING in self.snakemake("-n").stdout

    def measured(self) -> dict[str, int]:
        """Run; the rows this has added, by strategy."""
        told = self.snakemake("results/trial/trial.duckdb")
        assert told.returncode == 0, told.stdout
        rows, damaged = read_table(self.results, ["cell"])
        assert not damaged
        names = Counter(name for cell in rows["cell"].to_pylist() for name in STRATEGIES if f'"{name}"' in cell)
        added, self.counted = names - self.counted, names
        return dict(added)


STRATEGIES = ("full", "streaming_llm", "h2o")


def axes(h2o: dict) -> dict:
    return {"strategy": ["full", {"name": "streaming_llm", "budget": 0.25}, {"name": "h2o", **h2o}],
            "workload": [{"name": "nap"}]}  # fmt: skip


def test_a_change_measures_the_cells_it_touches_and_no_others(tmp_path):
    space = Copied(tmp_path / "here")
    space.campaign(axes({"budget": 0.25}))
    assert space.measured() == {"full": 1, "streaming_llm": 1, "h2o": 1}
    assert space.snakemake().returncode == 0
    assert space.is_up_to_date()

    # Nothing that changes no number: comments, docstrings, layout, order of keys and axes, where the project is, times.
    space.edit("strategies/h2o.py", "from __future__", "# Another comment.\n\nfrom __future__")
    space.edit("strategies/h2o.py", '"""H2O: heavy hitters', '"""H2O. Heavy hitters')
    turned = axes({"budget": 0.25})
    turned["strategy"].reverse()
    space.campaign(dict(reversed(turned.items())))
    (tmp_path / "here").rename(tmp_path / "there")
    counted = space.counted
    space = Copied(tmp_path / "there")
    space.counted = counted
    for path in [*space.package.rglob("*.py"), *(space.root / "config").rglob("*.yaml")]:
        os.utime(path)
    shutil.rmtree(space.root / ".snakemake")
    assert space.is_up_to_date()

    space.edit("strategies/h2o.py", "@strategy", "EDITED = True\n\n\n@strategy")
    assert space.measured() == {"h2o": 1}
    space.edit("engines/simulator.py", "@engine", "EDITED = True\n\n\n@engine")
    assert space.measured() == {"full": 1, "streaming_llm": 1, "h2o": 1}
    space.campaign(axes({"budget": [0.25, 0.5]}))
    assert space.measured() == {"h2o": 1}
    space.campaign(axes({"budget": [0.25, 0.5], "sinks": 2}))
    assert space.measured() == {"h2o": 2}
    space.campaign(axes({"budget": 0.5, "sinks": 2}))
    assert space.measured() == {}, "taking a budget out measures nothing"

    # What only presents is in no fingerprint; its edit draws the report again.
    assert space.snakemake().returncode == 0
    assert space.is_up_to_date()
    before = (space.results / "report.html").stat().st_mtime_ns
    space.edit("reports/charts/throughput.py", "from __future__", "# Edited.\nfrom __future__")
    assert space.measured() == {}
    assert space.snakemake().returncode == 0
    assert (space.results / "report.html").stat().st_mtime_ns > before
