"""Anchors in a campaign: lists of kinds, parts in stacks, and workloads that cannot tell what a kind wants to know."""

from __future__ import annotations

import pytest
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES, WORKLOADS
from kvfrontier.strategies._named import build
from toy_project import with_axes

KINDS = ("[sinks]", "[surprisal, numerals]", "[oracle_span]", "[early_turns, system_prompt]")


def test_a_kind_that_the_workload_does_not_tell_is_a_row_with_its_reason(toys):
    strategies = ", ".join(f"{{name: anchors, protect: {kinds}}}" for kinds in KINDS)
    plan = toys.plan(with_axes(strategy=f"[{strategies}]", strategy__budget="[0.25]"))
    reasons = {dict(cell.cell.strategy.params)["protect"]: cell.reason for cell in plan.cells}
    assert reasons[("sinks",)] == ""
    assert "does not give oracle_span" in reasons["oracle_span",]
    assert "does not give turns" in reasons["early_turns", "system_prompt"]


def test_which_workloads_tell_what(toys):
    cheating, early = (STRATEGIES.get("anchors")(protect=(kind,)) for kind in ("oracle_span", "early_turns"))
    for strategy in (cheating, early):
        WORKLOADS.get("retention")().check_strategy(strategy)
    for budget in (0.3, 1.0):
        told = STRATEGIES.get("anchors")(protect=("oracle_span", "surprisal"), budget=budget).requires()
        assert ({"oracle_span", "surprisal", "words"} <= told) == (budget < 1)


def test_the_future_is_seen_by_whole_sequences_alone(toys):
    plan = toys.plan(with_axes(strategy="[h2o_oracle_mask, h2o]"))
    reasons = {cell.cell.strategy.name: cell.reason for cell in plan.cells}
    assert reasons["h2o"] == "" and "does not give whole_sequence" in reasons["h2o_oracle_mask"]
    strategy = STRATEGIES.get("h2o_oracle_mask")()
    WORKLOADS.get("fidelity")().check_strategy(strategy)
    for name in ("retention", "speed"):
        with pytest.raises(Unsupported, match="whole_sequence"):
            WORKLOADS.get(name)().check_strategy(strategy)


def test_a_part_with_lists_and_parts_is_read_from_a_campaign(toys):
    evict = "{name: anchors, policy: {name: h2o, sinks: 2}, protect: [sinks, random], seed: 3}"
    plan = toys.plan(with_axes(strategy=f"[{{name: stack, evict: {evict}}}]", strategy__budget="[0.25]"))
    (cell, *_) = plan.cells
    text = dict(cell.cell.strategy.params)["evict"]
    assert text == "anchors(policy=h2o(sinks=2), protect=[sinks, random], seed=3)"
    made = build(text, 0.25)
    assert made.inner == STRATEGIES.get("h2o")(sinks=2, budget=0.25) and made.protect == ("sinks", "random")


def test_a_wrong_kind_is_a_problem_at_its_key(toys):
    problems = toys.problems(with_axes(strategy="[{name: anchors, protect: [[sink]]}]"))
    assert any("protect" in key for key in problems)
