"""Strategies of one campaign on the same items: what is paired, what is tested, and what must not be said."""

from __future__ import annotations

import json
from contextlib import contextmanager
from importlib.resources import files

import duckdb
import pyarrow as pa
import pytest
from kvfrontier.analysis.paired import (
    NoItems,
    find_reference,
    measured_by_item,
    paired,
    quality_metrics,
    references,
)
from kvfrontier.analysis.paired_table import heading, meaning, table
from kvfrontier.analysis.significance import holm
from kvfrontier.metrics import METRICS
from scipy import stats

STRATEGIES = {
    "full": {"name": "full"},
    "h2o(budget=0.1)": {"name": "h2o", "budget": 0.1},
    "h2o(budget=0.3)": {"name": "h2o", "budget": 0.3},
    "snapkv(budget=0.3)": {"name": "snapkv", "budget": 0.3},
    "infinigen(budget=0.3)": {"name": "infinigen", "budget": 0.3},
    "offload": {"name": "offload"},
}
CELL_FIELDS = ("model", "engine_label", "device", "source", "workload_label")


@contextmanager
def a_database(values, against=(), cells=None):
    """Tables as the published database has them. values: (label, metric, phase, request, value), or with a cell's
    other fields as a dictionary at the end (`feed`: of all cells or none)."""
    made, measurements = {}, []
    for label, metric, phase, request, value, *more in values:
        fields = {"seed": 0, "turn": None, "layer": None, "repeat": None, "workload": "retention"}
        fields |= more[0] if more else {}
        where = {name: fields.pop(name, name) for name in CELL_FIELDS}
        key = (label, fields["seed"], *where.values())
        made[key] = {
            "cell_id": str(key), "fingerprint": str(key), "strategy": STRATEGIES[label]["name"], "status": "ok",
            "strategy_label": label, "budget": STRATEGIES[label].get("budget"), "seed": fields["seed"], **where,
            "workload": fields["workload"], **({"workload_feed": fields["feed"]} if "feed" in fields else {}),
        }  # fmt: skip
        places = {name: fields[name] for name in ("turn", "layer", "repeat")}
        measurements.append(
            {"cell_id": str(key), "metric": metric, "phase": phase, "request": request, "value": value} | places
        )
    history = [
        {
            "fingerprint": row["fingerprint"],
            "is_current": True,
            "cell": json.dumps({"strategy": STRATEGIES[row["strategy_label"]]}),
        }
        for row in made.values()
    ]
    text = files("kvfrontier.store").joinpath("views.sql").read_text()
    start = text.index("CREATE MACRO without_budget")
    metrics = [{"metric": name, "kind": metric.kind} for name, metric in METRICS.items()]
    with duckdb.connect() as connection:
        connection.execute(text[start : text.index(";", start) + 1])
        for name, rows in (
            ("cells", made.values()),
            ("measurements", measurements),
            ("history", history),
            ("metrics", metrics),
        ):
            connection.register(f"{name}_rows", pa.Table.from_pylist(list(rows)))
            connection.execute(f"CREATE TABLE {name} AS FROM {name}_rows")
        for name, kind in (("phase", "VARCHAR"), ("turn", "INT"), ("layer", "INT"), ("repeat", "INT")):
            connection.execute(f"ALTER TABLE measurements ALTER {name} TYPE {kind}")
        connection.execute("ALTER TABLE cells ALTER budget TYPE DOUBLE")
        connection.register("against_rows", pa.table({"reference": pa.array(against, pa.string())}))
        connection.execute("CREATE TABLE against AS FROM against_rows")
        yield connection


def answers(label, right, metric="retention_correct", phase="depth=0", **more):
    """One item a request: 1 for `+`, 0 for anything else."""
    return [(label, metric, phase, number, float(mark == "+"), more) for number, mark in enumerate(right)]


def test_lost_and_gained_items_are_counted_and_tested_exactly():
    values = answers("full", "++++++++++++--") + answers("snapkv(budget=0.3)", "+++---------++")
    with a_database(values) as connection:
        (found,) = paired(connection, "full", ["retention_correct"])
    (line,) = found.lines
    assert (line.n, line.independent, line.lost, line.gained) == (14, 14, 9, 2)
    assert line.difference == pytest.approx(-7 / 14) and line.low < line.difference < line.high
    assert line.p == line.corrected == pytest.approx(stats.binomtest(2, 11).pvalue)
    assert (line.mean, line.reference_mean) == pytest.approx((5 / 14, 12 / 14))
    assert line.verdict == "not told apart" and line.visible == pytest.approx(6 / 14)


def test_lines_of_a_table_are_corrected_together_and_phases_by_themselves():
    marks = {"full": "+" * 12, "h2o(budget=0.3)": "+" * 7 + "-" * 5, "snapkv(budget=0.3)": "-" * 12}
    values = [
        v
        for label, right in marks.items()
        for phase in ("depth=0", "depth=1")
        for v in answers(label, right, phase=phase)
    ]
    with a_database(values) as connection:
        (found,) = paired(connection, "full", ["retention_correct"])
    assert [line.corrected for line in found.lines] == pytest.approx(holm([line.p for line in found.lines]))
    assert [(line.series, line.verdict) for line in found.lines] == [("h2o", "not told apart"), ("snapkv", "worse")]
    assert [line.independent for line in found.lines] == [12, 12], "24 questions about 12 conversations"
    assert len(found.by_phase) == 4 and {line.phase for line in found.by_phase} == {"depth=0", "depth=1"}
    assert [line.corrected for line in found.by_phase] == pytest.approx(holm([line.p for line in found.by_phase]))


def test_only_the_same_items_at_the_same_budget_are_paired():
    values = [
        *answers("h2o(budget=0.1)", "+-+"),
        *answers("h2o(budget=0.3)", "+-+"),
        *answers("snapkv(budget=0.3)", "+++++"),
        *answers("snapkv(budget=0.3)", "++++", seed=7),  # h2o has no such seed
        *answers("snapkv(budget=0.3)", "+++", workload_label="another"),
        *answers("full", "+++"),
    ]
    with a_database(values) as connection:
        (found,) = paired(connection, "h2o", ["retention_correct"])
    pairs = [(line.strategy_label, line.reference_label, line.n) for line in found.lines]
    assert pairs == [
        ("full", "h2o(budget=0.1)", 3),  # it has no budget: against each
        ("full", "h2o(budget=0.3)", 3),
        ("snapkv(budget=0.3)", "h2o(budget=0.3)", 3),
    ]


def test_few_items_are_never_called_a_difference_or_equal():
    with a_database(answers("full", "+++++") + answers("snapkv(budget=0.3)", "-----")) as connection:
        (found,) = paired(connection, "full", ["retention_correct"])
    (line,) = found.lines
    assert line.verdict == "too few" and line.visible is None and found.needed == 6
    assert "too few (5 of 6)" in table(found, found.lines).rows[0]


def test_retention_of_what_is_kept_whole_is_no_finding():
    """Forced choice reads; InfiniGen's readings and all of offload's work see every token. Free answers decode."""
    labels = ("full", "infinigen(budget=0.3)", "offload", "snapkv(budget=0.3)")
    read = [value for label in labels for value in answers(label, "+" * 10)]
    written = [value for label in labels for value in answers(label, "+" * 10, metric="retention_contained")]
    with a_database(read + written) as connection:
        correct, contained = paired(connection, "full", ["retention_correct", "retention_contained"])
    assert {line.series: line.verdict for line in correct.lines} == {
        "infinigen": "by construction",
        "offload": "by construction",
        "snapkv": "same",
    }
    assert all(line.p is None for line in correct.lines if line.verdict == "by construction")
    assert correct.needed == 6 and "for 1 lines" in meaning(correct), "what is no test corrects none"
    assert {line.verdict for line in contained.lines} == {"same"}


def test_retention_of_a_question_that_is_decoded_is_measured():
    """`feed: steps`: what a fetching strategy chooses has a part in the answer."""
    marks = {"full": "+" * 12, "infinigen(budget=0.3)": "-" * 9 + "+++", "snapkv(budget=0.3)": "-" * 9 + "+++"}
    for feed, lines in (("steps", 2), ("block", 1)):
        values = [value for label, right in marks.items() for value in answers(label, right, feed=feed)]
        with a_database(values) as connection:
            (found,) = paired(connection, "full", ["retention_correct"])
        told = {line.series: line.verdict for line in found.lines}
        assert told == {"infinigen": "worse" if feed == "steps" else "by construction", "snapkv": "worse"}
        assert found.lines[-1].corrected == pytest.approx(lines * found.lines[-1].p)
        assert f"for {lines} lines" in meaning(found)


def test_answers_to_tasks_are_read_or_decoded_too():
    """Those that are compared by their likelihood are read as `feed` says, those that are written never."""
    labels, where = ("full", "infinigen(budget=0.3)", "snapkv(budget=0.3)"), {"workload": "lm_eval", "phase": None}
    for feed, given in ((None, True), ("block", True), ("steps", False)):
        asked = where | ({"feed": feed} if feed else {})
        for likely in (True, False):
            values = [value for label in labels for value in answers(label, "+-" * 8, "acc", **asked)]
            values += [v for label in labels for v in answers(label, "-" * 16, "log_likelihood", **asked)] * likely
            with a_database(values) as connection:
                (found,) = paired(connection, "full", ["acc"])
            told = {line.series: line.verdict for line in found.lines}
            assert told == {"infinigen": "by construction" if given and likely else "same", "snapkv": "same"}


def test_a_document_is_one_cluster_whatever_seeds_ask_it():
    """`request` of lm_eval is its number in the data set; chats of two seeds are others."""
    marks = {"full": "++++++--", "snapkv(budget=0.3)": "++------"}
    for workload, independent in (("lm_eval", 8), ("retention", 16)):
        values = [
            value
            for seed in (0, 1)
            for label, right in marks.items()
            for value in answers(label, right, "acc", seed=seed, workload=workload)
        ]
        with a_database(values) as connection:
            (found,) = paired(connection, "full", ["acc"])
        (line,) = found.lines
        assert (line.n, line.independent, line.lost, line.difference) == (16, independent, 8, -0.5)
        assert line.p == pytest.approx(stats.binomtest(0, independent // 2).pvalue), "4 documents are worse, or 8 chats"
        width = line.high - line.low
        assert line.low < line.difference < line.high and (workload == "lm_eval") == (width > 0.7)


def test_real_values_have_a_seeded_interval_and_layers_are_no_items():
    values = [
        (label, "retention_margin", "depth=0", number, base + number % 3 + layer, {"layer": layer})
        for label, base in (("full", 2.0), ("snapkv(budget=0.3)", 1.0))
        for number in range(12)
        for layer in (0, 1)
    ]
    with a_database(values) as connection:
        (found,), (again,) = (paired(connection, "full", ["retention_margin"]) for _ in range(2))
    assert found == again
    (line,) = found.lines
    assert (line.n, line.lost, line.gained, line.verdict) == (12, None, None, "worse")
    assert line.difference == line.low == line.high == -1.0


def test_tokens_of_a_document_are_items_of_one_cluster():
    values = [
        (label, "top1_agreement", None, document, float(label == "snapkv(budget=0.3)" or turn > 5), {"turn": turn})
        for label in ("h2o(budget=0.3)", "snapkv(budget=0.3)")
        for document in range(3)
        for turn in range(20)
    ]
    with a_database(values) as connection:
        (found,) = paired(connection, "h2o", ["top1_agreement"])
    (line,) = found.lines
    assert (line.n, line.independent, line.gained, line.verdict) == (60, 3, 18, "too few")
    assert not found.by_phase


def test_a_distance_from_the_full_cache_is_not_compared_with_it_again():
    with a_database([(label, "kl_divergence", None, 0, 0.1) for label in ("full", "offload")]) as connection:
        assert paired(connection, "full", quality_metrics(connection)) == []


def test_timed_work_has_no_items():
    values = [("full", "ttft_s", None, request, 1.0, {"repeat": 0}) for request in range(3)]
    with a_database(values + answers("full", "+")) as connection:
        assert measured_by_item(connection) == ["retention_correct"]


def test_a_reference_is_found_by_name_or_by_what_no_other_label_has():
    values = [value for label in STRATEGIES for value in answers(label, "+")]
    with a_database(values) as connection:
        assert find_reference(connection, "h2o") == "h2o"
        assert find_reference(connection, "infini") == "infinigen"
        with pytest.raises(NoItems, match=r"'h3o'.*'h2o'.*snapkv"):
            find_reference(connection, "h3o")
        with pytest.raises(NoItems, match="may be"):
            find_reference(connection, "n")
        assert references(connection) == ["full"]
    with a_database(values, against=["h2o", "snapkv"]) as connection:
        assert references(connection) == ["h2o", "snapkv"]


def test_measured_and_modelled_never_meet_and_the_heading_says_which():
    values = answers("full", "+++") + answers("snapkv(budget=0.3)", "+++", source="model")
    with a_database(values + answers("full", "+++", source="model")) as connection:
        (found,) = paired(connection, "full", ["retention_correct"])
    assert found.source == "model" and "MODELLED" in heading(found)


def test_the_table_shows_each_place_of_the_fact():
    values = [
        v
        for phase, right in (("depth=0", "--++++"), ("depth=1", "+++++-"))
        for v in answers("snapkv(budget=0.3)", right, phase=phase)
    ]
    values += [v for phase in ("depth=0", "depth=1") for v in answers("full", "+++++-", phase=phase)]
    with a_database(values) as connection:
        (found,) = paired(connection, "full", ["retention_correct"])
    shown = table(found, found.lines, by_phase=True)
    row = dict(zip(shown.header, shown.rows[0], strict=True))
    assert (row["depth=0"], row["depth=1"]) == ("+1 -2", "+0 -0")
    assert (row["items"], row["difference (points)"], row["lost"], row["gained"]) == ("12 of 6", "-8", "2", "1")


def test_the_synthetic_campaign_against_its_own_values(connection):
    found = {item.model: item for item in paired(connection, "h2o", ["retention_correct"])}["test-alpha"]
    line = next(line for line in found.lines if line.strategy_label == "streaming_llm(budget=0.3)")
    both = connection.sql("""
        SELECT phase, request, max(value) FILTER (strategy = 'streaming_llm') AS a,
          max(value) FILTER (strategy = 'h2o') AS b
        FROM measurements JOIN cells USING (cell_id)
        WHERE metric = 'retention_correct' AND model = 'test-alpha' AND budget = 0.3 GROUP BY ALL""").fetchall()
    assert (line.n, line.independent) == (24, 12)
    assert line.lost == sum(b > a for _, _, a, b in both) and line.gained == sum(a > b for _, _, a, b in both)
    assert line.difference == pytest.approx(sum(a - b for _, _, a, b in both) / 24)
