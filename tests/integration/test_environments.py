"""Ray runs an engine's cells with its own environment's Python: made later, gone again. Real Ray."""

from __future__ import annotations

import json

import pytest
from fake_environment import LIBRARY, VERSION, FakeEnvironment
from kvfrontier.store.rows import read_table
from workspace import Workspace

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(900)]
RECIPE = "kvfrontier env make fake"
SENTENCE = f"environment 'fake' is missing: {RECIPE}"
ENGINE = f'''"""A simulator that runs elsewhere."""
from typing import ClassVar
from kvfrontier.engines import engine
from kvfrontier.engines.simulator import Simulator

@engine("elsewhere")
class Elsewhere(Simulator):
    environment: ClassVar[str] = "fake"
    packages: ClassVar[tuple[str, ...]] = ("{LIBRARY}",)
'''


class TwoPythons(Workspace):
    """A workspace with an engine `elsewhere`, whose environment is `fake`."""

    def __init__(self, root):
        super().__init__(root)
        self.fake = FakeEnvironment(root)
        (root / "engines").mkdir()
        (root / "engines" / "elsewhere.py").write_text(ENGINE)
        with (root / "sitecustomize.py").open("a") as site:
            site.write(f"import kvfrontier.engines\nkvfrontier.engines.__path__.append({str(root / 'engines')!r})\n")
            site.write("import pathlib\nimport kvfrontier.plan.environment\n")
            site.write(f"kvfrontier.plan.environment.PINS = pathlib.Path({str(self.fake.pins)!r})\n")

    @property
    def environment(self):
        return {**super().environment, **self.fake.variables}

    def measure(self) -> str:
        """Plan, and measure what is missing; what was said."""
        planned = self.run("kvfrontier", "plan", "trial")
        assert planned.returncode == 0, planned.stdout
        return self.measure_shards()

    def measure_shards(self) -> str:
        """Measure what the plan on disk says."""
        return "".join(self.run("kvfrontier", "measure", "trial", shard.name).stdout for shard in self.index().shards)

    def row(self, engine: str, seed: int) -> dict:
        """The newest row of a cell, provenance as a dict."""
        table, _ = read_table(self.results, ["cell", "fingerprint", "status", "reason", "started_at", "provenance"])
        found = [{**row, "cell": json.loads(row["cell"])} for row in table.to_pylist()]
        found = [row for row in found if (row["cell"]["engine"]["name"], row["cell"]["seed"]) == (engine, seed)]
        newest = max(found, key=lambda row: row["started_at"])
        return {**newest, "provenance": dict(newest["provenance"])}


def test_cells_wait_for_their_environment_and_then_run_with_its_python(tmp_path):
    space = TwoPythons(tmp_path)
    space.campaign({"engine": ["simulator", "elsewhere"], "workload": [{"name": "nap"}], "seed": [0]})
    space.measure()
    missing = space.row("elsewhere", 0)
    assert (missing["status"], missing["reason"]) == ("unsupported", SENTENCE)
    assert f"cells of its engine are unsupported: {RECIPE}" in space.run("kvfrontier", "doctor").stdout

    assert f"environment fake: {space.fake.cache}" in space.run("kvfrontier", "env", "make", "fake").stdout
    told = space.measure()
    there, here = space.row("elsewhere", 0), space.row("simulator", 0)
    assert there["status"] == "ok", told
    assert there["provenance"]["environment"].startswith("fake-") and there["provenance"][LIBRARY] == VERSION
    assert "environment" not in here["provenance"] and LIBRARY not in here["provenance"]
    assert space.naps_taken().total() == 2, "the other engine's cell was measured again"
    again = space.run("kvfrontier", "rerun", there["fingerprint"])
    assert again.returncode == 0 and "\nReproduced." in again.stdout, again.stdout

    # Planned with it, and gone when the worker starts: its Python is another one, which says so.
    space.campaign({"engine": ["elsewhere"], "workload": [{"name": "nap"}], "seed": [1]})
    assert space.run("kvfrontier", "plan", "trial").returncode == 0
    made = next((space.fake.cache / "envs").iterdir())
    made.rename(space.root / made.name)
    told = space.measure_shards()
    gone = space.row("elsewhere", 1)
    assert (gone["status"], gone["reason"]) == ("error", SENTENCE), told


def test_the_command_knows_its_names(tmp_path):
    space = TwoPythons(tmp_path)
    told = space.run("kvfrontier", "env", "make", "fakes")
    assert told.returncode == 2 and "Did you mean 'fake'?" in told.stdout and "Traceback" not in told.stdout
    assert space.run("kvfrontier", "env").stdout == f"fake: not made: {RECIPE}\n"
