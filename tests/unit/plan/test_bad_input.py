"""Mistakes in a campaign file: each is named with file, key, value, expectation and nearest spelling."""

from __future__ import annotations

import json

import pytest
from kvfrontier.errors import ConfigError
from kvfrontier.plan.campaign import load_campaign
from toy_project import with_axes

SPEED = "{name: toy_speed, context_tokens: 512}"

CASES = {
    # name of the case: (campaign, key, got, words of expectation, words of the hint)
    "unknown key": ("reapeats: 3\n" + with_axes(), "reapeats", "3", "repeats", "'repeats'"),
    "against nobody": (
        with_axes(strategy="[toy_h2o]") + "against: [toy_h20]\n",
        "against[0]",
        "'toy_h20'",
        "toy_h2o",
        "'toy_h2o'",
    ),
    "against several": (
        with_axes(strategy="[{name: toy_h2o, decode_evict: [every, off]}]") + "against: [{name: toy_h2o}]\n",
        "against[0]",
        "{name: 'toy_h2o'}",
        "toy_h2o; toy_h2o(decode_evict=off)",
        "",
    ),
    "against settings of none": (
        with_axes(strategy="[toy_h2o]") + "against: [{name: toy_h2o, decode_evict: off}]\n",
        "against[0]",
        "{name: 'toy_h2o', decode_evict: 'off'}",
        "one strategy of this campaign: toy_h2o",
        "",
    ),
    "unknown nested key": (with_axes() + "shard: {max_cell: 3}\n", "shard.max_cell", "3", "max_cells", "'max_cells'"),
    "misspelt axis": (with_axes(stratgy="[toy_full]"), "axes.stratgy", "'stratgy'", "strategy", "'strategy'"),
    "misspelt section": (
        with_axes(stratgy__budget="[1]"),
        "axes.stratgy.budget",
        "'stratgy.budget'",
        "strategy",
        "'strategy.budget'",
    ),
    "misspelt field of an axis": (
        with_axes(strategy="[toy_h2o]", strategy__budgt="[0.1]"),
        "axes.strategy.budgt",
        "'strategy.budgt'",
        "budget",
        "'budget'",
    ),
    "a budget for full alone": (
        with_axes(strategy__budget="[0.1]"),
        "axes.strategy.budget",
        "'strategy.budget'",
        "they have none",
        "",
    ),
    "misspelt strategy": (with_axes(strategy="[toy_h20]"), "axes.strategy[0]", "'toy_h20'", "toy_h2o", "'toy_h2o'"),
    "misspelt strategy in a mapping": (
        with_axes(strategy="[{name: toy_ful}]"),
        "axes.strategy[0].name",
        "'toy_ful'",
        "toy_full",
        "'toy_full'",
    ),
    "misspelt parameter": (
        with_axes(strategy="[toy_full, {name: toy_h2o, budgt: 0.1}]"),
        "axes.strategy[1].budgt",
        "0.1",
        "budget, recent_tokens",
        "'budget'",
    ),
    "misspelt engine": (with_axes(engine="[toy_engin]"), "axes.engine[0]", "'toy_engin'", "toy_engine", "'toy_engine'"),
    "misspelt workload": (
        with_axes(workload="[toy_sped]"),
        "axes.workload[0]",
        "'toy_sped'",
        "toy_speed",
        "'toy_speed'",
    ),
    "misspelt choice": (
        with_axes(strategy="[{name: toy_h2o, decode_evict: evry}]"),
        "axes.strategy[0].decode_evict",
        "'evry'",
        "one of every, off",
        "'every'",
    ),
    "budget 0": (
        with_axes(strategy="[toy_h2o]", strategy__budget="[0.1, 0]"),
        "axes.strategy.budget[1]",
        "0",
        "(0, 1]",
        "",
    ),
    "budget 1.5": (
        with_axes(strategy="[{name: toy_h2o, budget: 1.5}]"),
        "axes.strategy[0].budget",
        "1.5",
        "(0, 1]",
        "",
    ),
    "budget in quotes": (
        with_axes(strategy="[toy_h2o]", strategy__budget="['0.3']"),
        "axes.strategy.budget[0]",
        "'0.3'",
        "without quotes",
        "",
    ),
    "budget nan": (
        with_axes(strategy="[toy_h2o]", strategy__budget="[.nan]"),
        "axes.strategy.budget[0]",
        ".nan",
        "(0, 1]",
        "",
    ),
    "budget true": (
        with_axes(strategy="[toy_h2o]", strategy__budget="[true]"),
        "axes.strategy.budget[0]",
        "true",
        "a number",
        "",
    ),
    "batch 0": (with_axes(workload__batch_size="[1, 0]"), "axes.workload.batch_size[1]", "0", "1 or more", ""),
    "batch true": (with_axes(workload__batch_size="[true]"), "axes.workload.batch_size[0]", "true", "a number", ""),
    "batch 1.5": (with_axes(workload__batch_size="[1.5]"), "axes.workload.batch_size[0]", "1.5", "a whole number", ""),
    "batch in words": (
        with_axes(workload__batch_size="[many]"),
        "axes.workload.batch_size[0]",
        "'many'",
        "a whole number",
        "",
    ),
    "missing parameter": (
        with_axes(workload="[toy_speed]"),
        "axes.workload[0].context_tokens",
        "nothing",
        "required",
        "",
    ),
    "empty axis": (with_axes(strategy="[]"), "axes.strategy", "an empty list", "at least one", ""),
    "empty dotted axis": (
        with_axes(workload__batch_size="[]"),
        "axes.workload.batch_size",
        "an empty list",
        "at least one",
        "",
    ),
    "empty list in a component": (
        with_axes(strategy="[{name: toy_h2o, budget: []}]"),
        "axes.strategy[0].budget",
        "[]",
        "at least one",
        "",
    ),
    "axes that are no mapping": ("device: cpu\naxes: [a]\n", "axes", "['a']", "a mapping", ""),
    "no axes": ("device: cpu\n", "axes", "nothing", "required", ""),
    "no strategy axis": (
        with_axes().replace("  strategy: [toy_full]\n", ""),
        "axes.strategy",
        "nothing",
        "at least one strategy",
        "",
    ),
    "no device": (with_axes().replace("device: cpu\n", ""), "axes.device", "nothing", "at least one device", ""),
    "a component that is a number": (with_axes(strategy="[3]"), "axes.strategy[0]", "3", "the name of a strategy", ""),
    "zip of unequal lengths": (
        with_axes() + "zip:\n  - {workload.batch_size: [1, 2], seed: [0]}\n",
        "zip[0]",
        "workload.batch_size: 2 values, seed: 1 values",
        "one length",
        "",
    ),
    "zip that is no list": (with_axes() + "zip:\n  - {seed: 1}\n", "zip[0].seed", "1", "a list", ""),
    "zip of an axis that is given": (
        with_axes(seed="[0]") + "zip:\n  - {seed: [1]}\n",
        "zip[0].seed",
        "a path that axes.seed[0] gives too",
        "one place",
        "",
    ),
    "unknown model": (with_axes(model="[smal]"), "axes.model[0]", "'smal'", "config/models.yaml", "'small'"),
    "unknown device": (
        with_axes().replace("device: cpu", "device: h10"),
        "device",
        "'h10'",
        "config/devices.yaml",
        "'h100'",
    ),
    "device twice": (with_axes(device="[cpu]"), "device", "'cpu'", "not both", ""),
    "repeats twice": ("repeats: 3\n" + with_axes(workload__repeats="[1]"), "repeats", "3", "not both", ""),
    "repeats 0": ("repeats: 0\n" + with_axes(), "repeats", "0", "1 or more", ""),
    "negative seed": (with_axes(seed="[-1]"), "axes.seed[0]", "-1", "0 or more", ""),
    "seed nan": (with_axes(seed="[.nan]"), "axes.seed[0]", ".nan", "0 or more", ""),
    "name that leaves its folder": ("name: ../x\n" + with_axes(), "name", "'../x'", "letters, digits", ""),
    "misspelt path in a constraint": (
        with_axes() + "constraints:\n  - drop: {workload.context_token: 1}\n",
        "constraints[0].drop.workload.context_token",
        "'workload.context_token'",
        "context_tokens",
        "'context_tokens'",
    ),
    "misspelt section in a constraint": (
        with_axes() + "constraints:\n  - drop: {modle: small}\n",
        "constraints[0].drop.modle",
        "'modle'",
        "model",
        "'model'",
    ),
    "misspelt operator": (
        with_axes() + "constraints:\n  - drop: {seed: {grt: 1}}\n",
        "constraints[0].drop.seed.grt",
        "1",
        "an operator",
        "'gt'",
    ),
    "misspelt name in a constraint": (
        with_axes() + "constraints:\n  - drop: {strategy: [toy_ful]}\n",
        "constraints[0].drop.strategy",
        "'toy_ful'",
        "toy_full",
        "'toy_full'",
    ),
    "order of a word": (
        with_axes() + "constraints:\n  - drop: {seed: {gt: high}}\n",
        "constraints[0].drop.seed.gt",
        "'high'",
        "a number",
        "",
    ),
    "order of not a number": (
        with_axes() + "constraints:\n  - drop: {seed: {gt: .nan}}\n",
        "constraints[0].drop.seed.gt",
        ".nan",
        "a number",
        "",
    ),
    "a number in quotes in a constraint": (
        with_axes(strategy="[toy_h2o]") + "constraints:\n  - require: {strategy.budget: {in: [0.2, '0.1']}}\n",
        "constraints[0].require.strategy.budget.in",
        "'0.1'",
        "without quotes",
        "",
    ),
    "no value in a constraint": (
        with_axes() + "constraints:\n  - require: {seed: []}\n",
        "constraints[0].require.seed",
        "[]",
        "at least one",
        "",
    ),
    "a mapping for a name in a constraint": (
        with_axes() + "constraints:\n  - drop: {model: [{a: 1}]}\n",
        "constraints[0].drop.model",
        "{a: 1}",
        "the name of a model",
        "",
    ),
    "two rules in one": (
        with_axes() + "constraints:\n  - {drop: {seed: 0}, require: {seed: 1}}\n",
        "constraints[0]",
        "{drop: {seed: 0}, require: {seed: 1}}",
        "exactly one",
        "",
    ),
    "unknown key in a constraint": (
        with_axes() + "constraints:\n  - {drp: {seed: 0}}\n",
        "constraints[0].drp",
        "{seed: 0}",
        "drop",
        "'drop'",
    ),
    "all cells dropped": (
        with_axes() + "constraints:\n  - drop: {seed: 0}\n",
        "constraints",
        "rules that drop all 1 cells",
        "one cell left",
        "",
    ),
    "timeout 0": ("timeout_s: 0\n" + with_axes(), "timeout_s", "0", "above 0", ""),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_a_mistake_is_named_with_key_value_expectation_and_spelling(toys, case):
    text, key, got, expected, hint = CASES[case]
    problems = toys.problems(text)
    assert key in problems, problems
    problem = problems[key]
    assert problem.file.startswith("config/campaigns/trial.yaml")
    assert problem.got == got
    assert expected in problem.expected
    assert hint in problem.hint


def test_all_problems_come_at_once_with_their_lines(toys):
    text = """
    device: gpu
    reapeats: 3
    axes:
      model: [smal]
      engine: [toy_engine]
      strategy:
        - toy_ful
        - {name: toy_h2o, budget: 1.5, recent_tokens: 0}
      workload: [{name: toy_speed, context_tokens: 512}]
    constraints:
      - drop: {sed: 1}
    """
    toys.write("models.yaml", "small: {shape: {layers: 0}}\n")
    problems = toys.problems(text)
    assert {key: problem.file.rpartition(":")[2] for key, problem in problems.items()} == {
        "device": "2",
        "reapeats": "3",
        "axes.strategy[0]": "8",
        "axes.strategy[1].budget": "9",
        "axes.strategy[1].recent_tokens": "9",
        "constraints[0].drop.sed": "12",
        "small.shape.layers": "1",
        "small.shape.q_heads": "1",
        "small.shape.kv_heads": "1",
        "small.shape.head_dim": "1",
        "small.shape.hidden": "1",
        "small.shape.vocab": "1",
        "small.shape.max_positions": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key", "got"),
    [
        ("device: cpu\ndevice: h100\n", "device", "this key a second time (first on line 1)"),
        ("axes:\n  seed: [0]\n  seed: [1]\n", "axes.seed", "this key a second time (first on line 2)"),
        ("- a\n- b\n", "(file)", "a sequence at the top"),
        ("", "(file)", "an empty file"),
        ("axes: [1, 2\n", "(syntax)", "expected ',' or ']', but got '<stream end>'"),
        ("axes: !!python/object/apply:os.getcwd []\n", "(syntax)", "could not determine a constructor"),
        ("a: &a [*a]\n", "a[0]", "an alias inside itself"),
        ("{a: 2, [3]: 4}\n", "(file)", "a list or mapping as a key"),
    ],
)
def test_yaml_that_cannot_be_used_is_named_with_its_line(toys, text, key, got):
    problems = toys.problems(text)
    assert got in problems[key].got


def test_a_file_that_is_not_text_is_refused(toys):
    (toys.root / "config" / "campaigns").mkdir()
    (toys.root / "config" / "campaigns" / "trial.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_campaign(toys.project, "trial")


def test_two_campaigns_with_one_name_are_both_named(toys):
    toys.campaign_text("name: Trial\n" + with_axes(), "other")
    problem = toys.problems("name: trial\n" + with_axes())["name"]
    assert "config/campaigns/other.yaml" in problem.expected
    assert problem.file == "config/campaigns/trial.yaml:1"


def test_a_broken_campaign_does_not_trouble_another(toys):
    toys.campaign_text("axes: [", "broken")
    assert toys.plan(with_axes()).cells


def test_an_unknown_campaign_is_answered_with_the_nearest(toys):
    toys.campaign_text(with_axes())
    with pytest.raises(ConfigError, match="Did you mean 'trial'"):
        load_campaign(toys.project, "trail")


def test_a_context_longer_than_the_model_is_unsupported_and_noted(toys):
    plan = toys.plan(with_axes(workload="[{name: toy_speed, context_tokens: [512, 4096]}]", seed="[0, 1]"))
    statuses = {(item.parameters["workload"]["context_tokens"], item.status) for item in plan.cells}
    assert statuses == {(512, None), (4096, "unsupported")}
    assert [shard.runnable for shard in plan.shards] == [2]
    (note,) = plan.notes
    assert note.startswith("config/campaigns/trial.yaml:6: axes.workload[0].context_tokens[1] (4096): ")
    assert "2048" in note
    assert "2 cells" in note


def test_a_campaign_of_contexts_that_are_all_too_long_is_refused(toys):
    problem = toys.problems(with_axes(workload="[{name: toy_speed, context_tokens: 4096}]"))[
        "axes.workload[0].context_tokens"
    ]
    assert problem.got == "4096"
    assert "at most 2048 tokens" in problem.expected


def test_what_engine_and_workload_refuse_becomes_a_reason(toys):
    plan = toys.plan(with_axes(strategy="[toy_full, toy_window]", engine="[{name: toy_engine, prefill: eager}]",
                               workload=f"[{SPEED}, toy_chat]"))  # fmt: skip
    reasons = {(item.cell.strategy.name, item.cell.workload.name): item.reason for item in plan.cells}
    lacking = "engine toy_engine does not offer text, which workload toy_chat needs; engine kvpress or torch does"
    assert reasons == {
        ("toy_full", "toy_speed"): "",
        ("toy_window", "toy_speed"): "eager prefill has no window",
        ("toy_full", "toy_chat"): lacking,
        ("toy_window", "toy_chat"): lacking,
    }


def test_the_effective_budget_of_a_short_context_is_stated(toys):
    plan = toys.plan(
        with_axes(strategy="[{name: toy_h2o, budget: 0.1}]", workload="[{name: toy_speed, context_tokens: 16}]")
    )
    assert plan.notes == (
        "toy_h2o(budget=0.1) on 16 tokens keeps 4 a KV head: an effective budget of 0.25 instead of 0.1",
    )


@pytest.mark.parametrize(("context", "notes"), [(17, 0), (16, 1)])
def test_a_context_of_one_chunk_is_stated(toys, context, notes):
    strategies = "[{name: h2o_stream, budget: 0.5, chunk_tokens: 16}, {name: h2o, budget: 0.5}]"
    plan = toys.plan(with_axes(strategy=strategies, workload=f"[{{name: toy_speed, context_tokens: {context}}}]"))
    assert plan.notes == (
        f"h2o_stream(budget=0.5, chunk_tokens=16) reads {context} tokens in one chunk of 16: "
        "its chunks make no difference",
    )[:notes]  # fmt: skip


def test_a_data_source_that_nobody_described_is_a_mistake(toys):
    toys.write("data.yaml", "toy_txt: {requirement: toy==1.0, sha256: %s, size_bytes: 1}\n" % ("ab" * 32))
    text = with_axes(workload=f"[{SPEED}, toy_chat]")
    problem = toys.problems(text)["axes.workload[1]"]
    assert (problem.got, problem.hint) == ("'toy_text'", "Did you mean 'toy_txt'?")


def test_problems_survive_json(toys):
    problems = toys.problems(with_axes(strategy="[{name: toy_h2o, budget: {a: [1, .nan]}}]"))
    assert json.dumps([str(problem) for problem in problems.values()])
    assert problems["axes.strategy[0].budget"].got == "{a: [1, .nan]}"
