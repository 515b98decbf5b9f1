"""What makes a measurement stale, tried on a copy of the package: edits that count, and edits that do not."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import kvfrontier
import pytest
from kvfrontier.plan.code import CodeBase
from kvfrontier.plan.fingerprint import ENGINE_CODE, STRATEGY_CODE, WORKLOAD_CODE, changed_parts
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS
from toy_project import TOYS

CAMPAIGN = """
device: cpu
axes:
  model: [small]
  engine: [toy_engine]
  strategy: [toy_full, toy_h2o, toy_window]
  workload: [{name: toy_speed, context_tokens: 512}]
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package with the toys inside, to edit."""
    root = tmp_path / "copy" / "kvfrontier"
    shutil.copytree(Path(kvfrontier.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("strategies", "engines", "workloads"):
        for path in (TOYS / folder).glob("*.py"):
            shutil.copy(path, root / folder)
    return root


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def stale(toys, package: Path, change) -> dict[str, list[str]]:
    """Strategy -> parts of its cells that an edit changed; strategies whose cells stay valid are left out."""
    before = toys.plan(CAMPAIGN, CodeBase(package)).cells
    change()
    after = toys.plan(CAMPAIGN, CodeBase(package)).cells
    found = {}
    for old, new in zip(before, after, strict=True):
        assert old.cell_id == new.cell_id
        changed = changed_parts(new.parts, old.parts)
        assert (old.fingerprint != new.fingerprint) == bool(changed)
        if changed:
            found[new.cell.strategy.name] = changed
    return found


ALL = ("toy_full", "toy_h2o", "toy_window")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("strategies/toy_h2o.py", "def kept_tokens", "# a comment\n    def kept_tokens"),
        ("strategies/toy_h2o.py", '"""Keeps a share."""', '"""Keeps a share of the tokens."""'),
        ("strategies/toy_h2o.py", 'description="Kept share"', 'description="What is kept"'),
        ("strategies/toy_h2o.py", "recent_tokens)\n", "\n            recent_tokens,\n        )\n"),
        ("strategies/_toy_scores.py", '"""What toy_h2o keeps."""', ""),
        ("engines/toy_engine.py", "prefill: str", '"""A string beside a field."""\n    prefill: str'),
    ],
)
def test_comments_docstrings_and_formatting_change_nothing(toys, package, file, old, new):
    assert stale(toys, package, lambda: edit(package / file, old, new)) == {}


@pytest.mark.parametrize("file", ["strategies/toy_h2o.py", "strategies/_toy_scores.py"])
def test_code_of_a_strategy_stales_its_cells_alone(toys, package, file):
    path = package / file
    assert stale(toys, package, lambda: path.write_text(path.read_text() + "\nLEAST = 3\n")) == {
        "toy_h2o": ["strategy_code"]
    }


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("strategies/base.py", "strategy_code"),
        ("strategies/__init__.py", "strategy_code"),
        ("engines/toy_engine.py", "engine_code"),
        ("engines/base.py", "engine_code"),
        ("workloads/toy_speed.py", "workload_code"),
        ("workloads/__init__.py", "workload_code"),
    ],
)
def test_code_that_all_cells_share_stales_all(toys, package, file, part):
    path = package / file
    assert stale(toys, package, lambda: path.write_text(path.read_text() + "\nNEW = 3\n")) == {
        name: [part] for name in ALL
    }


@pytest.mark.parametrize("folder", ["run", "store", "plan", "reports", "cli"])
def test_plumbing_is_in_no_fingerprint(toys, package, folder):
    def change():
        for path in (package / folder).glob("*.py"):
            path.write_text(path.read_text() + "\nNEW = 3\n")

    assert stale(toys, package, change) == {}


def test_imports_inside_functions_count_and_type_checking_ones_do_not(package):
    path = package / "engines" / "toy_engine.py"
    path.write_text(
        path.read_text() + "\n\ndef late():\n    from kvfrontier.cache import toy_late\n\n    return toy_late\n"
        "\n\nif TYPE_CHECKING:\n    from kvfrontier.cache import toy_type\n"
    )
    (package / "cache" / "toy_late.py").write_text("from . import toy_deep\n")
    (package / "cache" / "toy_deep.py").write_text("A = 1\n")
    (package / "cache" / "toy_type.py").write_text("A = 1\n")
    closure = CodeBase(package).closure(["kvfrontier.engines.toy_engine"], ENGINE_CODE)
    assert {name for name in closure if "cache" in name} == {
        "kvfrontier.cache",
        "kvfrontier.cache.toy_late",
        "kvfrontier.cache.toy_deep",
    }


def test_the_hash_does_not_depend_on_where_the_package_is(package):
    module = ["kvfrontier.engines.toy_engine"]
    elsewhere = package.parent / "elsewhere"
    shutil.copytree(package, elsewhere)
    assert CodeBase(package).code_hash(module, ENGINE_CODE) == CodeBase(elsewhere).code_hash(module, ENGINE_CODE)


@pytest.mark.parametrize("kind", [(ENGINES, ENGINE_CODE), (WORKLOADS, WORKLOAD_CODE)], ids=["engines", "workloads"])
def test_no_engine_or_workload_contains_a_strategy(kind):
    """An edit of one strategy must stale its own cells: nothing that all cells share may import it."""
    registry, within = kind
    code = CodeBase.installed()
    strategies = {STRATEGIES.module(name) for name in STRATEGIES.names()}
    for name in registry.names():
        assert not strategies & code.closure([registry.module(name)], (*within, "strategies"))


def test_no_strategy_contains_another():
    code = CodeBase.installed()
    strategies = {STRATEGIES.module(name) for name in STRATEGIES.names()}
    for module in strategies:
        assert code.closure([module], STRATEGY_CODE) & strategies == {module}


def test_every_part_of_the_architecture_is_there(toys):
    text = CAMPAIGN.replace(
        "[{name: toy_speed, context_tokens: 512}]", "[{name: toy_speed, context_tokens: 512}, toy_chat]"
    )
    parts = next(item.parts for item in toys.plan(text).cells if item.cell.workload.name == "toy_chat")
    assert list(parts) == [
        "cell",
        "model",
        "strategy_code",
        "engine_code",
        "workload_code",
        "device",
        "reference_code",
        "data",
        "package:pydantic",
    ]
    assert re.fullmatch(r"\d+\.\d+.*", parts["package:pydantic"])


def test_a_part_that_is_ignored_is_named_but_does_not_count(toys, package):
    toys.write("config.yaml", "fingerprint: {ignore: [strategy_code, 'package:*']}\n")
    before = toys.plan(CAMPAIGN, CodeBase(package)).cells
    edit(package / "strategies" / "toy_h2o.py", "= 4", "= 5")
    after = toys.plan(CAMPAIGN, CodeBase(package)).cells
    assert [item.fingerprint for item in before] == [item.fingerprint for item in after]
    assert before[1].parts["strategy_code"] != after[1].parts["strategy_code"]


def test_a_model_or_a_device_stales_its_cells(toys):
    before = toys.plan(CAMPAIGN).cells[0]
    toys.write("devices.yaml", "cpu: {kind: cpu, flops_per_s: 1e12}\n")
    assert toys.plan(CAMPAIGN).cells[0].fingerprint == before.fingerprint  # rates decide modelled numbers alone
    toys.write("models.yaml", (toys.root / "config" / "models.yaml").read_text().replace("layers: 2", "layers: 3"))
    assert changed_parts(toys.plan(CAMPAIGN).cells[0].parts, before.parts) == ["model"]


def test_planning_imports_no_torch_ray_or_snakemake(toys):
    import subprocess

    toys.campaign_text(
        CAMPAIGN.replace("toy_full, toy_h2o, toy_window", "full, streaming_llm, h2o").replace("toy_engine", "torch")
    )
    code = (
        "import sys; from pathlib import Path; from kvfrontier.plan.project import Project\n"
        "from kvfrontier.plan import disk\n"
        "from kvfrontier.errors import ConfigError\n"
        f"try: disk.prepare(Project.at(Path({str(toys.root)!r})), 'trial')\n"
        "except ConfigError: pass\n"
        "print([name for name in ('torch', 'ray', 'snakemake', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
