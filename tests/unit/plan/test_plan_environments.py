"""Whether an engine's environment is made decides whether its cells run; its versions count in their fingerprints."""

import pickle
import pickletools
from pathlib import Path

import pytest
from fake_environment import LIBRARY, VERSION, FakeEnvironment
from kvfrontier.errors import ConfigError
from kvfrontier.plan import environment as environments
from kvfrontier.plan.disk import prepare
from kvfrontier.plan.environment import PINS, Environment
from kvfrontier.registry import WORKLOADS
from kvfrontier.run.meeting import Meeting
from kvfrontier.run.schedule import Died
from kvfrontier.run.worker import Report, Task
from kvfrontier.sources.environment import make
from toy_project import planned_cells, with_axes

SENTENCE = "environment 'fake' is missing: kvfrontier env make fake"
PASSES = {"ray", "pyarrow", "pydantic", "pydantic-core", "pyyaml"}
"""By Ray's own protocol, in files, or as settings."""
OF_THEIR_OWN = {"vllm-cpu": {"numpy"}, "vllm-cuda": {"numpy", "torch"}}
"""vLLM pins numba, which wants an older numpy, and the torch that it is built against. Neither passes: see below."""
BOTH = with_axes(engine="[toy_engine, toy_elsewhere]")


@pytest.fixture
def fake(toys, monkeypatch):
    fake = FakeEnvironment(toys.root)
    monkeypatch.setattr(environments, "PINS", fake.pins)
    for name, value in fake.variables.items():
        monkeypatch.setenv(name, value)
    return fake


def test_without_it_cells_are_unsupported_and_with_it_they_are_others_that_run(toys, fake):
    toys.campaign_text(BOTH)
    first = prepare(toys.project, "trial")
    core, elsewhere = sorted(planned_cells(first), key=lambda cell: cell.cell.engine.name, reverse=True)
    assert (core.status, elsewhere.status, elsewhere.reason) == (None, "unsupported", SENTENCE)
    assert any(SENTENCE in note and "1 cell will be rows `unsupported`" in note for note in first.notes)
    assert elsewhere.parts[f"package:{LIBRARY}"] == "not installed"

    make(Environment("fake"))
    second = prepare(toys.project, "trial")
    again, runs = sorted(planned_cells(second), key=lambda cell: cell.cell.engine.name, reverse=True)
    assert again.fingerprint == core.fingerprint and runs.cell_id == elsewhere.cell_id
    assert runs.status is None and runs.fingerprint != elsewhere.fingerprint, "its row `unsupported` must not stand"
    assert runs.parts[f"package:{LIBRARY}"] == VERSION
    assert f"package:{LIBRARY}" not in again.parts
    assert len(second.shards) == 2, "one kind of worker a shard"


def test_a_campaign_that_needs_it_throughout_is_refused_with_the_command(toys, fake):
    with pytest.raises(ConfigError, match=r"axes.engine\[0\].*kvfrontier env make fake"):
        toys.plan(with_axes(engine="[toy_elsewhere]"))


@pytest.mark.parametrize("name", [environment.name for environment in environments.environments()])
def test_what_passes_between_a_driver_and_its_workers_is_pinned_alike(name):
    own, core = _pinned(PINS / f"{name}.txt"), _pinned(PINS / "core.txt")
    for package in {*PASSES, "numpy", "torch"} - OF_THEIR_OWN.get(name, set()):
        assert own[package] == core[package], f"{name}.txt pins another {package} than core.txt"


def test_nothing_of_numpy_or_torch_passes_between_a_driver_and_its_workers(toys):
    plan = toys.plan()
    report = Report("error", "why", "run", "Error", 1.5, "after error", "", "Traceback ...")
    meeting = Meeting(pid=1, host="here", lacks="")
    passes = pickle.dumps([toys.project, Path("results"), Task(plan.cells[0], 1), report, meeting, Died("why"), 1])
    words = {argument for _, argument, _ in pickletools.genops(passes) if isinstance(argument, str)}
    assert "kvfrontier.run.worker" in words and "kvfrontier.plan.planned" in words
    assert not {word for word in words if word.partition(".")[0] in ("numpy", "torch", "transformers")}


def _pinned(path: Path) -> dict[str, str]:
    lines = (line.partition("#")[0].partition("==") for line in path.read_text().splitlines())
    return {name.strip().lower().replace("_", "-"): version.strip() for name, _, version in lines if version}


def test_a_package_that_a_workload_needs_and_the_environment_lacks_is_a_reason(toys, monkeypatch):
    monkeypatch.setattr(WORKLOADS.get("toy_speed"), "packages", ("no-such-package",))
    with pytest.raises(ConfigError, match="toy_speed needs no-such-package, which the environment 'core' of engine"):
        toys.plan(with_axes(engine="[toy_engine]"))
