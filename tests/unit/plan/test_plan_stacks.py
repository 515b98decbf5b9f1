"""Stacks in a campaign: both forms of a part, rows `unsupported` for illegal pairs, and whose code stales them."""

from __future__ import annotations

import shutil
from pathlib import Path

import kvfrontier
from kvfrontier.plan.code import CodeBase
from kvfrontier.plan.fingerprint import code_modules
from toy_project import with_axes

PAIRS = (
    "[{name: stack, evict: [h2o, {name: h2o, decode_evict: 'off'}], store: [int8, kivi(bits=4)]}, "
    "{name: stack, evict: streaming_llm, store: int8}]"
)


def test_a_pair_that_cannot_be_is_a_row_with_its_reason(toys):
    plan = toys.plan(with_axes(strategy=PAIRS, strategy__budget="[0.25]"))
    found = {cell.cell.strategy.label: (cell.status, cell.reason) for cell in plan.cells}
    illegal = found.pop("stack(budget=0.25, store=kivi(bits=4))")
    assert illegal[0] == "unsupported" and "kivi(bits=4)" in illegal[1] and "while decoding" in illegal[1]
    assert set(found) == {
        "stack(budget=0.25)",
        "stack(budget=0.25, evict=h2o(decode_evict=off))",
        "stack(budget=0.25, evict=h2o(decode_evict=off), store=kivi(bits=4))",
        "stack(budget=0.25, evict=streaming_llm)",
    }
    assert {status for status, _ in found.values()} == {None}


def test_a_wrong_part_is_a_problem_at_its_key(toys):
    problems = toys.problems(with_axes(strategy="[{name: stack, evict: {name: h2o, sink: 4}}]"))
    assert list(problems) == ["axes.strategy[0].evict"]
    assert "h2o.sink" in problems["axes.strategy[0].evict"].expected


def test_the_code_of_both_parts_stales_a_stack_and_other_code_does_not(toys, tmp_path):
    root = tmp_path / "copy" / "kvfrontier"
    shutil.copytree(Path(kvfrontier.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("engines", "workloads"):
        for path in (Path(__file__).parents[2] / "toys" / folder).glob("*.py"):
            shutil.copy(path, root / folder)

    def fingerprints():
        return [cell.fingerprint for cell in toys.plan(with_axes(strategy=PAIRS), CodeBase(root)).cells]

    def changed(name):
        before = fingerprints()
        with (root / "strategies" / f"{name}.py").open("a") as file:
            file.write("\nNEW = 1\n")
        return [old != new for old, new in zip(before, fingerprints(), strict=True)]

    kivi, of_h2o = [False, True, False, True, False], [True, True, True, True, False]
    assert changed("kivi") == kivi
    assert changed("h2o") == of_h2o
    assert changed("fp8") == [False] * 5
    assert changed("stack") == [True] * 5
    cell = toys.plan(with_axes(strategy=PAIRS)).cells[1].cell
    assert {"kvfrontier.strategies.h2o", "kvfrontier.strategies.kivi"} <= set(code_modules("strategy_code", cell))
