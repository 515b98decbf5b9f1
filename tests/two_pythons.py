"""A workspace with an engine that an environment of its own runs."""

from __future__ import annotations

import json

from fake_environment import LIBRARY, FakeEnvironment
from kvfrontier.store.rows import read_table
from workspace import Workspace

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
    """Its engine `elsewhere` simulates; the environment is `fake`, and not made yet."""

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
