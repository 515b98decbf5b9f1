"""What the page says of lm-eval's tasks: skill to be lost, contexts too short, and which comparisons it leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from kvfrontier.metrics import Measurement
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.reports.chart import charts, data_of
from kvfrontier.reports.content import MOST_PAIRED, paired_tables
from kvfrontier.reports.page import write_report
from kvfrontier.reports.tasks import TO_BE_SHOWN, full_cache, short_contexts
from kvfrontier.store.database import build_database
from kvfrontier.store.query import open_database
from synthetic import write_measured

FULL, TORCH = Component("full"), Component("torch")
GUESS_DRAWN = json.dumps({"aggregate": "max", "field": "guess"}).strip("{}")


def strategy(name: str, **settings) -> Component:
    return Component(name, tuple(sorted(settings.items())))


def asked(how: Component, task: str = "piqa", engine: Component = TORCH, seed: int = 0) -> Cell:
    return Cell("test-alpha", engine, "cpu", how, Component("lm_eval", (("task", task),)), seed)


def contexts(held: list[float], tokens: int = 30, bites: bool = True, **others: float) -> list[Measurement]:
    """Of documents of `tokens` tokens, of which that many are held. others: metrics of the cell."""
    found = [Measurement(name, value, "prefill") for name, value in others.items()]
    for request, left in enumerate(held):
        values = {"context_tokens": tokens, "evicted_tokens": tokens - left, "effective_budget": left / tokens}
        values |= {"budget_bites": float(left < tokens)} if bites else {}
        found += [Measurement(metric, value, request=request) for metric, value in values.items()]
    return found


def answers(right: str, **others: float) -> list[Measurement]:
    """acc of a document each, 1 for `+`. others: metrics of the cell."""
    found = [Measurement(name, value) for name, value in others.items()]
    return found + [Measurement("acc", float(mark == "+"), request=number) for number, mark in enumerate(right)]


@contextmanager
def published(tmp_path, measured):
    folder = write_measured(tmp_path / "results", measured)
    build_database(folder)
    with open_database(folder) as connection:
        yield connection


def shown(table) -> Iterator[dict[str, str]]:
    for row in table.rows:
        assert all(isinstance(cell, str) for cell in row), row
        yield dict(zip(table.header, row, strict=True))


def test_strategies_that_keep_everything_have_no_budget_that_is_too_large(tmp_path):
    """A fetching strategy's budget is of what it fetches: its contexts are not too short, and the page is written."""
    measured = {
        asked(FULL): contexts([30, 30], bites=False),
        asked(strategy("infinigen", budget=0.1)): contexts([30, 30], bites=False),
        asked(strategy("delta_fetch", budget=0.1, pool_limit=0.8)): contexts([24, 24], kv_host_bytes=5e3),
    }
    with published(tmp_path, measured) as connection:
        assert short_contexts(connection).rows == []
    page = write_report(tmp_path / "results" / "measured").read_text()
    assert "No context of a task was too short for its budget." in page


def test_a_pool_that_no_context_fills_is_told(tmp_path):
    measured = {asked(strategy("infinigen", budget=0.1, pool_limit=256)): contexts([30, 30], kv_host_bytes=5e3)}
    with published(tmp_path, measured) as connection:
        (row,) = shown(short_contexts(connection))
    assert row["documents that lost nothing"] == "at 0.1: 2 of 2"


def test_budgets_in_tokens_and_strategies_without_a_budget_are_told_like_shares(tmp_path):
    measured = {
        asked(strategy("h2o", budget=0.1)): contexts([6, 6, 6, 6]),
        asked(strategy("h2o", budget=0.3)): contexts([9, 9, 9, 9]),
        asked(strategy("h2o", budget=256)): contexts([30, 30, 30, 30]),
        asked(strategy("h2o", heavy_ratio=0.25)): contexts([30, 18, 18, 18]),
        asked(strategy("snapkv", budget=8)): contexts([12, 12, 12, 12]),
        asked(strategy("snapkv", budget=10)): contexts([12, 12, 12, 12]),
    }
    with published(tmp_path, measured) as connection:
        found = {row["strategy"]: row for row in shown(short_contexts(connection))}
    told = {name: (row["share held"], row["documents that lost nothing"]) for name, row in found.items()}
    assert told == {
        "h2o": ("at 0.1: 0.20, at 256 tokens: 1.00", "at 256 tokens: 4 of 4"),
        "h2o(heavy_ratio=0.25)": ("0.70", "1 of 4"),
        "snapkv": ("at 8 tokens: 0.40", ""),
    }
    assert {(row["documents"], row["mean tokens"]) for row in found.values()} == {("4", "30")}


def test_the_synthetic_campaign_holds_a_quarter_of_short_contexts_at_least(connection):
    for row in shown(short_contexts(connection)):
        assert row["strategy"] in ("h2o", "streaming_llm")
        assert row["share held"] == "at 0.1: 0.25, at 0.3: 0.30, at 0.5: 0.50"
        assert row["documents that lost nothing"] == "at 0.1: 1 of 12, at 0.3: 1 of 12, at 0.5: 1 of 12"
    assert short_contexts(connection).rows


def test_contexts_that_lose_what_was_asked_are_not_listed(tmp_path):
    with published(tmp_path, {asked(strategy("h2o", budget=0.5)): contexts([15, 15])}) as connection:
        assert short_contexts(connection).rows == []


def test_engines_are_told_apart(tmp_path):
    engines = (TORCH, Component("torch", (("threads", 2),)))
    measured = {
        asked(how, engine=engine): values
        for engine in engines
        for how, values in ((FULL, answers("++")), (strategy("h2o", budget=256), contexts([30, 30])))
    }
    with published(tmp_path, measured) as connection:
        for table in (short_contexts(connection), full_cache(connection)):
            places = [row["model"] for row in shown(table)]
            assert places == ["test-alpha · torch · cpu", "test-alpha · torch(threads=2) · cpu"]


FLOORS = {
    # right answers, guessing, most frequent place; Wilson intervals of 16: 12 right 51 to 90 %, 9 right 33 to 77 %
    "skilled": ("+" * 12 + "-" * 4, {"guess_accuracy": 0.25, "majority_accuracy": 0.3}, "above guessing"),
    "one_place": ("+" * 12 + "----", {"guess_accuracy": 0.5, "majority_accuracy": 0.8}, "cannot be told from guessing"),
    "guessing": ("+" * 9 + "-" * 7, {"guess_accuracy": 0.5, "majority_accuracy": 0.4}, "cannot be told from guessing"),
    "wrong": ("+" + "-" * 15, {"guess_accuracy": 0.5, "majority_accuracy": 0.5}, "below guessing"),
    "few": ("+" + "-" * 15, {"guess_accuracy": 0.25, "majority_accuracy": 0.9}, "cannot be told from guessing"),
    "open": ("+" + "-" * 15, {}, "above 0"),
    "silent": ("-" * 16, {}, "cannot be told from 0"),
}  # fmt: skip


@pytest.fixture
def floors(tmp_path):
    """Tasks under the full cache, and of another strategy whose documents are others."""
    measured = {asked(FULL, task): answers(right, **cell) for task, (right, cell, _) in FLOORS.items()}
    other = answers("+++", guess_accuracy=0.9, majority_accuracy=0.95)
    with published(tmp_path, measured | {asked(strategy("h2o", budget=0.1), "skilled"): other}) as connection:
        yield connection


def test_the_full_cache_has_skill_where_it_is_above_guessing_and_the_most_frequent_place(floors):
    found = {row["task"].partition("task=")[2].rstrip(")"): row for row in shown(full_cache(floors))}
    assert {task: row["verdict"] for task, row in found.items()} == {task: said for task, (*_, said) in FLOORS.items()}
    assert list(found["skilled"].values())[2:8] == ["acc", "16", "25%", "30%", "75%", "51% to 90%"]
    assert list(found["open"].values())[4:8] == ["-", "-", "6%", "1% to 28%"]
    numeric = dict(zip(full_cache(floors).header, full_cache(floors).numeric, strict=True))
    assert numeric["guessing"] and numeric["full cache"] and not numeric["verdict"]
    assert full_cache(floors).note == TO_BE_SHOWN


def test_each_score_of_a_task_has_a_line_and_seeds_are_one_sample(tmp_path):
    normed = [Measurement("acc_norm", 0.0, request=number) for number in range(8)]
    first = answers("+" * 8, guess_accuracy=0.25, majority_accuracy=0.25) + normed
    others = [one if one.request is None else one._replace(request=one.request + 8) for one in first]
    measured = {asked(FULL, seed=0): first, asked(FULL, seed=1): others}
    with published(tmp_path, measured) as connection:
        rows = list(shown(full_cache(connection)))
    assert [(row["score"], row["documents"], row["full cache"], row["verdict"]) for row in rows] == [
        ("acc", "16", "100%", "above guessing"),
        ("acc_norm", "16", "0%", "below guessing"),
    ]


def test_nothing_is_said_of_what_may_be_shown_where_every_task_is_above_its_floor(tmp_path):
    with published(tmp_path, {asked(FULL): answers("+" * 8, guess_accuracy=0.5, majority_accuracy=0.5)}) as connection:
        assert full_cache(connection).note == ""


def test_the_chart_of_accuracy_has_a_line_at_guessing_where_there_are_choices(floors):
    (found,) = (one for one in charts() if one.name == "accuracy_by_budget")
    table = data_of(found, floors)
    said = {row["panel"].split(" | ")[1]: row["guess"] for row in table.to_pylist() if row["series"] == "full"}
    assert said == {task: cell.get("guess_accuracy") for task, (_, cell, _) in FLOORS.items()}
    assert GUESS_DRAWN in json.dumps(found.draw(table).to_dict()["spec"])
    place = table.column_names.index("guess")
    without = table.set_column(place, "guess", pa.nulls(table.num_rows, pa.float64()))
    assert GUESS_DRAWN not in json.dumps(found.draw(without).to_dict()["spec"])


def many_tasks(count: int) -> dict[Cell, list[Measurement]]:
    """Under the full cache and another: acc, acc_norm and a margin of four documents each."""
    metrics = ("acc", "acc_norm", "answer_margin")
    values = [Measurement(name, float(number > 1), request=number) for name in metrics for number in range(4)]
    return {
        asked(how, f"task{number:02}"): values for number in range(count) for how in (FULL, strategy("h2o", budget=0.1))
    }


def test_tables_that_a_page_has_no_room_for_are_counted_and_both_kinds_stay(tmp_path):
    with published(tmp_path, many_tasks(14)) as connection:
        found = paired_tables(connection)
    assert len(found.shown) == MOST_PAIRED and found.left_out == 14 * 3 - MOST_PAIRED
    kinds = [(one["workload"], one["heading"].split(" ")[0]) for one in found.shown]
    labels = [f"lm_eval(task=task{number:02})" for number in range(MOST_PAIRED // 2)]
    assert kinds == [(label, metric) for label in labels for metric in ("acc", "answer_margin")]
    page = write_report(tmp_path / "results" / "measured").read_text()
    assert f"{found.left_out} more tables" in page and "<code>kvfrontier paired measured</code> prints all" in page


def test_all_tables_that_fit_are_shown_each_task_by_itself(tmp_path):
    with published(tmp_path, many_tasks(2)) as connection:
        found = paired_tables(connection)
    metrics = [one["heading"].split(" ")[0] for one in found.shown]
    assert metrics == ["acc", "acc_norm", "answer_margin"] * 2 and found.left_out == 0
    assert "more tables" not in write_report(tmp_path / "results" / "measured").read_text()
