"""`kvfrontier strategies`: the page in docs is what the classes say, and every class says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from kvfrontier.cli.strategies import command, entry_of
from kvfrontier.registry import STRATEGIES

PAGE = Path(__file__).parents[3] / "docs" / "strategies.md"


def run(*arguments):
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_the_page_is_up_to_date():
    assert run("--markdown") == PAGE.read_text(encoding="utf-8"), (
        "docs/strategies.md is out of date: kvfrontier strategies --markdown >docs/strategies.md"
    )


@pytest.mark.parametrize("name", STRATEGIES.names())
def test_a_class_says_what_it_does_where_and_how_each_parameter_counts(name):
    entry = entry_of(STRATEGIES.get(name))
    assert entry.summary
    assert entry.phases
    assert entry.needs
    assert [parameter for parameter, _, said in entry.parameters if not said] == []
    assert 0 < entry.bytes_share <= 1


def test_the_bytes_are_the_formulas():
    shares = {name: entry_of(STRATEGIES.get(name)).bytes_share for name in ("full", "fp8", "h2o")}
    assert shares == {"full": 1.0, "fp8": 0.5, "h2o": pytest.approx(0.2, abs=1e-3)}


def test_one_strategy_with_its_parameters():
    told = run("snapkv")
    assert "arXiv:2404.14469" in told
    assert "window_tokens = 32: w: last tokens" in told


def test_the_list_names_every_strategy():
    assert [line.split()[0] for line in run().split("\n\n")[0].splitlines()] == list(STRATEGIES.names())
