"""The house rules that a reviewer would otherwise have to remember: who imports whom, and how large a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kvfrontier
import pytest

PACKAGE = Path(kvfrontier.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

BASE = {"errors", "registry", "parameters", "units"}
PLAN = BASE | {"plan", "metrics"}
ENGINE_SIDE = PLAN | {"sources", "models", "cache", "strategies", "costmodel", "engines"}
STORE_SIDE = PLAN | {"store"}
MAY_IMPORT = {
    "errors": set(),
    "registry": BASE,
    "parameters": BASE,
    "units": BASE,
    "metrics": BASE,
    "plan": PLAN,
    "sources": PLAN,
    "models": PLAN | {"sources"},
    "cache": PLAN | {"models"},
    "strategies": PLAN | {"models", "cache"},
    "costmodel": PLAN | {"strategies"},
    "engines": ENGINE_SIDE,
    "workloads": ENGINE_SIDE | {"workloads"},
    "store": STORE_SIDE,
    "run": ENGINE_SIDE | STORE_SIDE | {"workloads"},
    "analysis": STORE_SIDE,
    "reports": STORE_SIDE | {"analysis"},
}
"""Unit -> units it may import beside itself. The command line (`cli`) may import everything."""


def unit_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(module: Path) -> set[str]:
    """Dotted names a module imports anywhere, inside functions too; type-checking blocks do not count."""
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package_units(module: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_names(module) if name.startswith("kvfrontier.")} - {"__version__"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(module):
    unit = unit_of(module)
    if unit in ("cli", "__init__"):
        return
    forbidden = package_units(module) - MAY_IMPORT[unit] - {unit}
    assert not forbidden, f"{unit} must not import {sorted(forbidden)}"


def test_every_unit_has_a_place_in_the_import_order():
    assert {unit_of(module) for module in MODULES} - {"cli", "__init__"} == set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("ray", {"run/ray_dispatch.py"}),
        ("snakemake", set()),
        ("kvpress", {"engines/_kvpress_lane.py", "engines/_kvpress_session.py"}),
        ("transformers.cache_utils", {path for path in map(str, MODULES) if "/cache/" in path}),
    ],
)
def test_a_library_is_touched_in_its_place_only(library, allowed):
    users = {
        str(module.relative_to(PACKAGE)) if library != "transformers.cache_utils" else str(module)
        for module in MODULES
        if any(name == library or name.startswith(f"{library}.") for name in imported_names(module))
    }
    assert users <= allowed


def test_listing_and_reading_plugins_imports_no_heavy_library():
    program = (
        "import sys, kvfrontier, kvfrontier.cli\n"
        "from kvfrontier.registry import STRATEGIES, ENGINES, WORKLOADS\n"
        "names = [(r, n) for r in (STRATEGIES, ENGINES, WORKLOADS) for n in r.names()]\n"
        "assert names\n"
        "[r.get(n) for r, n in names]\n"
        "print(sorted({'torch', 'ray', 'vllm', 'transformers', 'snakemake'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "plugin modules import torch and transformers inside their methods"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_fits_in_250_lines_and_says_what_it_is_for(module):
    text = module.read_text()
    assert text.count("\n") <= 250
    assert ast.get_docstring(ast.parse(text)), "a module starts with its one job"


def test_no_file_is_named_after_nothing():
    assert not [path for path in MODULES if path.stem in {"utils", "helpers", "misc", "common"}]


def test_one_broad_except_in_the_package():
    broad = [
        str(module.relative_to(PACKAGE))
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
    ]
    assert set(broad) <= {"run/cell_runner.py"}
    assert len(broad) <= 1
