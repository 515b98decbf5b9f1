"""Files that no one writes on purpose: each is refused in words, at once, and never with a traceback."""

from __future__ import annotations

import pytest
from kvfrontier.errors import ConfigError
from kvfrontier.plan.campaign import load_campaign
from toy_project import CAMPAIGN, with_axes

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
HUGE = "9" * 6000


@pytest.mark.parametrize(
    ("text", "key", "got"),
    [
        ("axes:\n\tmodel: [x]\n", "(syntax)", "that cannot start any token"),
        ("a: 1\n---\nb: 2\n", "(syntax)", "another document"),
        ("a: \x07\n", "(syntax)", "control character 0x7"),
        ("axes: " + "[" * 5000 + "]" * 5000, "(syntax)", "nested too deeply"),
        (f"timeout_s: {HUGE}\n", "(syntax)", "Exceeds the limit"),
        (f"timeout_s: 0x{'f' * 6000}\n", "(syntax)", "beyond 64 bits"),
        ("timeout_s: !!int x\n", "(syntax)", "invalid literal"),
        ("1.5: 3\n", "(file)", "the key '1.5'"),
        ("axes: {true: 3}\n", "axes", "the key 'true'"),
        ('"a\\nb": 3\n', "(file)", "the key"),
        (LAUGHS + CAMPAIGN, "a11", "[[[[[[[[[[[["),
    ],
)
def test_hostile_yaml_is_named(toys, text, key, got):
    problems = toys.problems(text)
    assert got in problems[key].got
    assert all(len(str(problem)) < 500 for problem in problems.values())


def test_bytes_that_are_no_text_are_named_with_their_line(toys):
    toys.campaign_text("")
    (toys.root / "config/campaigns/trial.yaml").write_bytes(CAMPAIGN.encode() + b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"trial.yaml:9: .* byte 0xe9; .* UTF-8"):
        load_campaign(toys.project, "trial")


def test_a_file_with_a_control_character_does_not_trouble_another_campaign(toys):
    toys.campaign_text("a: \x00", "broken")
    assert toys.plan().cells


@pytest.mark.parametrize(
    ("axes", "key", "expected"),
    [
        ({"seed": "[4294967296]"}, "axes.seed[0]", "at most 4294967295"),
        ({"seed": '["\u00b2"]'}, "axes.seed[0]", "a whole number"),
        ({"seed": f'["{HUGE}"]'}, "axes.seed[0]", "a whole number"),
        ({"seed": "[1e25]"}, "axes.seed[0]", "a whole number"),
        ({"strategy": "[toy_h2o]", "strategy__budget": "[.inf]"}, "axes.strategy.budget[0]", "(0, 1]"),
        ({"strategy": "[toy_h2o]", "strategy__budget": "[1e25]"}, "axes.strategy.budget[0]", "64 bits"),
        ({"strategy": "[TOY_H2]"}, "axes.strategy[0]", "toy_h2o"),
    ],
)
def test_numbers_beyond_all_use_are_refused(toys, axes, key, expected):
    problem = toys.problems(with_axes(**axes))[key]
    assert expected in problem.expected


def test_a_nearest_spelling_does_not_mind_capitals(toys):
    assert toys.problems(with_axes(strategy="[TOY_H2]"))["axes.strategy[0]"].hint == "Did you mean 'toy_h2o'?"


def test_a_device_of_nothing_is_a_missing_device(toys):
    problem = toys.problems(with_axes().replace("device: cpu", "device:"))["axes.device"]
    assert problem.expected == "at least one device"


def test_what_two_parameters_say_together_is_shown_as_the_file_has_it(toys):
    problem = toys.problems(with_axes(strategy="[{name: h2o, budget: null}]"))["axes.strategy[0]"]
    assert problem.got == "{budget: null (nothing)}"


def test_a_token_count_beyond_the_context_is_stated(toys):
    plan = toys.plan(with_axes(strategy="[{name: h2o, budget: 1e9}]"))
    (note,) = plan.notes
    assert note.endswith("on 512 tokens keeps 512 a KV head: an effective budget of 1 instead of 1000000000 tokens")
