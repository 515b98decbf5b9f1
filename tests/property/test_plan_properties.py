"""Properties of plans over random campaigns."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvfrontier.plan.names import decode_name, encode_name
from toy_project import TOYS, ToyProject, toy_plugins

pytestmark = pytest.mark.filterwarnings("ignore")
FAST = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def toys():
    with toy_plugins(), tempfile.TemporaryDirectory() as folder:
        yield ToyProject(Path(folder))


def axis(values) -> st.SearchStrategy[list]:
    return st.lists(values, min_size=1, max_size=3, unique=True)


campaigns = st.fixed_dictionaries(
    {
        "strategy": axis(st.sampled_from(["toy_full", "toy_h2o", "toy_window"])).filter(
            lambda names: names != ["toy_full"]
        ),
        "strategy.budget": axis(st.sampled_from([0.1, 0.25, 0.5, 1.0, 2, 64])),
        "workload.context_tokens": axis(st.integers(1, 1000)),
        "workload.batch_size": axis(st.integers(1, 8)),
        "seed": axis(st.integers(0, 5)),
        "device": axis(st.sampled_from(["cpu", "h100"])),
    }
)


def text_of(axes: dict, **rest) -> str:
    axes = {"model": ["small"], "engine": ["toy_engine"], "workload": ["toy_speed"], **axes}
    return yaml.safe_dump({"axes": axes, **rest}, sort_keys=False)


def cell_ids(plan) -> set[str]:
    return {item.cell_id for item in plan.cells}


def size(axes: dict) -> int:
    strategies = sum(1 if name == "toy_full" else len(axes["strategy.budget"]) for name in axes["strategy"])
    return strategies * math.prod(len(axes[name]) for name in axes if not name.startswith("strategy"))


@FAST
@given(campaigns)
def test_the_number_of_cells_is_the_product(toys, axes):
    plan = toys.plan(text_of(axes))
    assert len(plan.cells) == len(cell_ids(plan)) == size(axes)
    assert plan.duplicates == 0


@FAST
@given(campaigns, st.integers(1, 8), st.sampled_from(["drop", "require"]))
def test_kept_and_dropped_cells_add_up(toys, axes, limit, kind):
    axes["workload.batch_size"] = [1, *(value for value in axes["workload.batch_size"] if value > 1)]
    rule = {"drop": {"workload.batch_size": {"gt": limit}}, "require": {"workload.batch_size": {"le": limit}}}
    plan = toys.plan(text_of(axes, constraints=[{kind: rule[kind]}]))
    assert len(plan.cells) + plan.dropped == size(axes)
    assert all(item.parameters["workload"]["batch_size"] <= limit for item in plan.cells)


@FAST
@given(campaigns, st.randoms())
def test_identities_do_not_depend_on_the_order_of_axes_or_values(toys, axes, random):
    before = {(item.cell_id, item.fingerprint) for item in toys.plan(text_of(axes)).cells}
    names = list(axes)
    random.shuffle(names)
    shuffled = {name: random.sample(axes[name], len(axes[name])) for name in names}
    assert {(item.cell_id, item.fingerprint) for item in toys.plan(text_of(shuffled)).cells} == before


@FAST
@given(campaigns, st.integers(1, 20))
def test_shards_partition_the_cells(toys, axes, max_cells):
    plan = toys.plan(text_of(axes, shard={"max_cells": max_cells}))
    members = [cell.cell_id for shard in plan.shards for cell in plan.members[shard.name]]
    assert len(members) == len(set(members)) == size(axes)
    assert len({shard.name for shard in plan.shards}) == len(plan.shards)
    for shard in plan.shards:
        cells = plan.members[shard.name]
        assert 1 <= len(cells) == shard.cells <= max_cells
        assert {(cell.cell.model, cell.cell.device) for cell in cells} == {(shard.model, shard.device)}


@FAST
@given(campaigns, st.sampled_from([0.05, 0.75, 128]))
def test_adding_a_value_keeps_every_older_cell(toys, axes, budget):
    before = {(item.cell_id, item.fingerprint) for item in toys.plan(text_of(axes)).cells}
    more = {**axes, "strategy.budget": [*axes["strategy.budget"], budget]}
    after = {(item.cell_id, item.fingerprint) for item in toys.plan(text_of(more)).cells}
    assert before < after


@FAST
@given(campaigns)
def test_the_id_is_the_cells_own_hash(toys, axes):
    assert all(item.cell.cell_id == item.cell_id for item in toys.plan(text_of(axes)).cells)


@FAST
@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_encoded_names_are_reversible_distinct_and_stay_in_their_folder(one, other):
    assert decode_name(encode_name(one)) == one
    assert (encode_name(one) == encode_name(other)) == (one == other)
    assert (Path("/x") / encode_name(one)).resolve().parent == Path("/x")


def test_identities_are_the_same_in_another_process_with_another_hash_seed(toys):
    text = text_of(
        {
            "strategy": ["toy_full", "toy_h2o"],
            "strategy.budget": [0.1, 0.3],
            "workload.context_tokens": [64],
            "device": ["cpu"],
        }
    )
    here = {item.cell_id: item.fingerprint for item in toys.plan(text).cells}
    code = (
        "from toy_project import *\n"
        f"with toy_plugins():\n    plan = ToyProject(Path({str(toys.root)!r})).plan({text!r})\n"
        "print({item.cell_id: item.fingerprint for item in plan.cells})"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(TOYS.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(here)
