"""Tasks of lm-eval in the table of the choice: what is pooled, what the stars stand for, what is so by construction."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from kvfrontier.analysis.choice import hints, keeps_retention
from kvfrontier.analysis.frontier import compare
from kvfrontier.analysis.table import choice_table, remarks, settings
from kvfrontier.cli.frontier import render
from kvfrontier.metrics import Measurement
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.store.database import build_database
from kvfrontier.store.query import open_database
from scipy import stats
from synthetic import write_measured

FULL, FETCHING = Component("full"), Component("infinigen", (("budget", 0.3),))
SMALL, LARGE = (Component("h2o", (("budget", budget),)) for budget in (0.1, 0.5))
FIDELITY = Component("fidelity", (("context_tokens", 256),))
BYTES = {FULL: 1.0, SMALL: 0.1, LARGE: 0.5, FETCHING: 0.3}


def task(name, **more):
    return Component("lm_eval", tuple(sorted({"task": name, **more}.items())))


def answers(marks, share=1.0, context=1000.0, written=False):
    """`+`: as with the full cache, and right in every second document. context: bytes of the full cache."""
    for number, mark in enumerate(marks):
        yield Measurement("full_agreement", float(mark == "+"), request=number)
        if not written:
            yield Measurement("acc", float(mark == "+" and number % 2 == 0), request=number)
            yield Measurement("log_likelihood", -1.0, request=number, turn=0)
    yield Measurement("kv_device_bytes", share * context, "prefill")
    yield Measurement("kv_full_bytes", context, "prefill")


def text(kl):
    """What `fidelity` finds."""
    for number in range(4):
        yield Measurement("kl_divergence", kl, request=number)
        yield Measurement("top1_agreement", 1.0, request=number, turn=0)
    yield Measurement("kv_device_bytes", 777.0, "prefill")
    yield Measurement("kv_full_bytes", 777.0, "prefill")


@contextmanager
def the_group(folder, found):
    """The only group of a campaign with these measurements. found: (strategy, workload) -> measurements."""
    cells = {Cell("m", Component("torch"), "cpu", *key): list(values) for key, values in found.items()}
    campaign = write_measured(folder, cells)
    build_database(campaign)
    with open_database(campaign) as connection:
        (group,) = compare(connection)
        yield group


def two_tasks(small_piqa="++--", small_boolq="+" * 10 + "--"):
    """Four documents of one task, twelve of another with contexts three times as long."""
    marks = {"piqa": {FULL: "++++", SMALL: small_piqa, LARGE: "+++-"}}
    marks["boolq"] = {FULL: "+" * 12, SMALL: small_boolq, LARGE: "+" * 12}
    context = {"piqa": 1000.0, "boolq": 3000.0}
    return {
        (strategy, task(name)): answers(marks[name][strategy], BYTES[strategy], context[name])
        for name in marks
        for strategy in marks[name]
    }


def rows(group):
    return {row["strategy_label"]: row for row in group.rows}


def test_documents_of_all_tasks_are_one_sample(tmp_path):
    with the_group(tmp_path, two_tasks()) as group:
        row, full = rows(group)["h2o(budget=0.1)"], rows(group)["full"]
        assert (row["as_full"], row["as_full_n"], row["acc"]) == pytest.approx((12 / 16, 16, 6 / 16))
        wilson = stats.binomtest(12, 16).proportion_ci(method="wilson")
        assert (row["as_full_low"], row["as_full_high"]) == pytest.approx((wilson.low, wilson.high))
        assert (full["device_bytes"], row["device_bytes"]) == pytest.approx((2500, 250)), "means over the documents"
        assert (full["device_share"], row["device_share"]) == pytest.approx((1, 0.1))
        assert settings(group) == [
            ("tasks", "16 documents of boolq, piqa, pooled; KV bytes are from here, means over them")
        ]
        table = choice_table(group)
        assert table.header == ("strategy", "budget", "device KV", "of full", "as full", "acc")
        assert table.rows[1] == ["h2o", "0.1", "250 B*", "10%", "75% [51-90]", "38%"]
        assert any("documents of all tasks as one sample" in said for said in remarks(group))


def test_stars_are_of_answers_where_there_is_no_retention(tmp_path):
    found = two_tasks(small_piqa="----", small_boolq="-" * 12)
    worse = Component("streaming_llm", (("budget", 0.5),))
    found |= {(worse, task("piqa")): answers("----", 0.5), (worse, task("boolq")): answers("+" * 12, 0.5, 3000.0)}
    # Divergence would say otherwise of each of them.
    found |= {(FULL, FIDELITY): text(0.9), (SMALL, FIDELITY): text(0.1), (worse, FIDELITY): text(0.0)}
    with the_group(tmp_path, found) as group:
        assert {label: row["leads_device"] for label, row in rows(group).items()} == {
            "full": True,
            "h2o(budget=0.1)": True,
            "h2o(budget=0.5)": True,
            "streaming_llm(budget=0.5)": False,
        }
        assert [line for line in render(group).splitlines() if "* on the frontier" in line and "as full" in line]


def test_tasks_do_not_push_the_text_out_of_the_table(tmp_path):
    """They cover more strategies than `fidelity` does."""
    found = two_tasks() | {(FULL, FIDELITY): text(0.0), (LARGE, FIDELITY): text(0.25)}
    with the_group(tmp_path, found) as group:
        assert [(row["kl"], row["top1"]) for row in group.rows] == [(0.0, 1.0), (None, None), (0.25, 1.0)]
        assert [purpose for purpose, _ in settings(group)] == ["tasks", "fidelity"]
        assert rows(group)["full"]["device_bytes"] == 2500, "not of the text's cells"


def test_shares_are_of_the_same_tasks_or_there_is_none(tmp_path):
    found = two_tasks() | {(FULL, task("arc_easy")): answers("+++"), (LARGE, task("winogrande")): answers("+++")}
    del found[SMALL, task("piqa")]
    found |= {(FETCHING, task("piqa")): answers("++++", 0.3)}
    with the_group(tmp_path, found) as group:
        assert settings(group)[0][1].startswith("16 documents of boolq, piqa, pooled (2 more settings in the store)")
        shares = {label: row["as_full"] for label, row in rows(group).items()}
        assert shares["full"] == 1.0 and shares["h2o(budget=0.5)"] == 15 / 16
        assert shares["h2o(budget=0.1)"] is shares["infinigen(budget=0.3)"] is None, "each lacks one of the two"
        assert rows(group)["h2o(budget=0.1)"]["device_bytes"] is None


def test_a_task_is_pooled_under_one_of_its_settings(tmp_path):
    again = {
        (FULL, task("piqa", num_fewshot=5)): answers("++++"),
        (LARGE, task("piqa", num_fewshot=5)): answers("----"),
    }
    with the_group(tmp_path, two_tasks() | again) as group:
        assert rows(group)["h2o(budget=0.5)"]["as_full"] == 15 / 16
        assert "1 more setting in the store" in settings(group)[0][1]


def test_a_task_of_written_answers_has_no_accuracy(tmp_path):
    found = {(strategy, task("gsm8k")): answers("++--", written=True) for strategy in (FULL, LARGE)}
    with the_group(tmp_path, found) as group:
        assert choice_table(group).header == ("strategy", "budget", "device KV", "of full", "as full")
        assert settings(group) == [("tasks", "4 documents of gsm8k; KV bytes are from here")]


def test_bytes_are_said_to_be_from_where_they_are(tmp_path):
    """One pass over context and answer has no cache."""
    found = {(strategy, task("piqa")): list(answers("++++"))[:-2] for strategy in (FULL, LARGE)}
    found |= {(FULL, FIDELITY): text(0.0), (LARGE, FIDELITY): text(0.25)}
    with the_group(tmp_path, found) as group:
        assert settings(group) == [
            ("tasks", "4 documents of piqa"),
            ("fidelity", "256 tokens of context; KV bytes are from here"),
        ]
        assert rows(group)["full"]["device_bytes"] == 777


@pytest.mark.parametrize("feed", [None, "block", "steps"])
def test_answers_that_are_the_full_caches_by_construction_are_no_finding(tmp_path, feed):
    piqa = task("piqa") if feed is None else task("piqa", feed=feed)
    found = {
        (FULL, piqa): answers("+" * 8),
        (FETCHING, piqa): answers("+" * 8, 0.3),
        (SMALL, piqa): answers("+" * 6 + "--", 0.1),
    }
    with the_group(tmp_path, found) as group:
        shown = {row[0]: row[4] for row in choice_table(group).rows}
        (hint,) = [hint for hint in hints(group) if "answers must stay the same" in hint.constraint]
        told = [said for said in remarks(group) if "answers to tasks equal the full cache's by construction" in said]
    if feed == "steps":
        assert not told and shown["infinigen"] == "100% [68-100]" and hint.choice == "infinigen(budget=0.3)"
    else:
        assert told[0].startswith("= infinigen:") and shown["infinigen"] == "100% [68-100]="
        assert hint.choice == "h2o(budget=0.1)" and "75% of 8" in hint.because


def test_retention_that_is_decoded_is_measured(tmp_path):
    """`feed: steps`: the fetching strategy chooses for the question and the alternatives."""

    def asked(marks):
        return [Measurement("retention_correct", float(mark == "+"), request=at) for at, mark in enumerate(marks)]

    for feed, given in (("block", True), ("steps", False)):
        chats = Component("retention", (("context_tokens", 256), ("feed", feed)))
        found = {(FULL, chats): asked("+" * 10), (FETCHING, chats): asked("+" * 9 + "-")}
        with the_group(tmp_path / feed, found) as group:
            assert any("by construction" in said for said in remarks(group)) is given
            assert [row["strategy"] for row in keeps_retention(group)] == ["full"] + ["infinigen"] * (not given)
