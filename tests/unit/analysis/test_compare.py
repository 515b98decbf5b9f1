"""Rows against rows: pairing, what counts as a change, what cannot be compared, and no alarm without a change."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from kvfrontier.analysis.compare import compare
from kvfrontier.cli._comparison import as_csv, as_json, as_text
from kvfrontier.metrics import Measurement
from kvfrontier.plan.cell import Cell, Component
from kvfrontier.store.rows import as_table
from kvfrontier.store.schema import ROW
from kvfrontier.store.selection import Selection


def a_cell(number: int) -> Cell:
    return Cell("toy", Component("torch"), "cpu", Component("full"), Component("speed"), number)


def a_row(
    cell: Cell, measurements=(), version: str = "a", status: str = "ok", source: str = "measured", **more
) -> dict:
    return {
        "cell_id": cell.cell_id,
        "fingerprint": f"{cell.cell_id}{version * 12}",
        "parts": {"cell": cell.cell_id, "strategy_code": "same", **more.pop("parts", {})},
        "cell": json.dumps(cell.as_dict()),
        "status": status,
        "source": source,
        "attempt": 1,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "provenance": {"host": "here", "load_average": version, **more.pop("provenance", {})},
        "measurements": list(measurements),
    }


def table(*rows: dict) -> pa.Table:
    return pa.concat_tables([ROW.empty_table(), *map(as_table, rows)])


def timed(draw, cell: int, slowdown: float = 1.0, repeats: int = 3, requests: int = 2):
    """Times with 5 % noise a repeat; bytes and outcomes that only the cell decides."""
    for repeat in range(repeats):
        factor = slowdown * (1 + 0.05 * draw.standard_normal())
        for request in range(requests):
            yield Measurement("ttft_s", (1 + cell) * factor, repeat=repeat, request=request)
        yield Measurement("e2e_latency_s", 10 * (1 + cell) * factor, repeat=repeat)
        yield Measurement("output_tokens_per_s", 100 / factor, repeat=repeat)
        yield Measurement("kv_device_bytes", 1000.0 * (1 + cell), "decode", repeat=repeat)
    yield Measurement("process_peak_bytes", 1e9 * (1 + 0.02 * draw.standard_normal()), "decode")
    fixed = np.random.default_rng(cell)
    for request in range(10):
        yield Measurement("retention_correct", float(fixed.random() < 0.7), "depth=0", request=request)
        yield Measurement("kl_divergence", fixed.random(), request=request, turn=0)


def campaign(seed: int, version: str, cells: int = 12, **options) -> pa.Table:
    draw = np.random.default_rng(seed)
    return table(*(a_row(a_cell(n), timed(draw, n, **options), version) for n in range(cells)))


def verdicts(found) -> dict[str, str]:
    return {change.metric: change.verdict for change in found.metrics}


def test_the_same_work_twice_raises_no_more_alarms_than_it_may():
    families = [compare(campaign(2 * seed, "a"), campaign(2 * seed + 1, "b")) for seed in range(20)]
    changed = ("worse", "better", "changed")
    assert sum(any(item.verdict in changed for item in found.metrics) for found in families) <= 3, "5 % of 20, and luck"
    assert sum(any(item.verdict in changed for item in found.by_cell) for found in families) <= 3
    assert all(verdicts(found)["kv_device_bytes"] == "same" for found in families)
    assert all(verdicts(found)["retention_correct"] == verdicts(found)["kl_divergence"] == "same" for found in families)


@pytest.mark.parametrize(("cells", "repeats", "test"), [(12, 3, "Wilcoxon"), (4, 3, "repeats"), (1, 10, "Welch")])
def test_a_tenth_slower_is_found_and_called_worse(cells, repeats, test):
    found = compare(campaign(1, "a", cells, repeats=repeats), campaign(2, "b", cells, repeats=repeats, slowdown=1.1))
    times = {change.metric: change for change in found.metrics}
    for metric in ("ttft_s", "e2e_latency_s", "output_tokens_per_s"):
        assert (times[metric].verdict, times[metric].test) == ("worse", test)
    assert times["ttft_s"].low < 1.1 < times["ttft_s"].high and times["ttft_s"].effect == pytest.approx(1.1, abs=0.05)
    assert times["output_tokens_per_s"].effect == pytest.approx(1 / 1.1, abs=0.05)
    assert times["process_peak_bytes"].verdict in ("no change", "too few")
    assert found.is_worse and not compare(campaign(1, "a"), campaign(1, "b")).is_worse


def test_a_faster_version_is_better():
    found = compare(campaign(1, "a"), campaign(2, "b", slowdown=0.8))
    assert verdicts(found)["e2e_latency_s"] == "better" and not found.is_worse


def test_bytes_that_differ_at_all_are_a_change():
    before = [Measurement("kv_device_bytes", 10**9, "decode"), Measurement("kept_tokens", 7, layer=0, head=1)]
    after = [Measurement("kv_device_bytes", 10**9 + 64, "decode"), Measurement("kept_tokens", 7, layer=0, head=1)]
    found = compare(table(a_row(a_cell(0), before)), table(a_row(a_cell(0), after, "b")))
    assert verdicts(found) == {"kv_device_bytes": "worse", "kept_tokens": "same"}
    change = found.metrics[0]
    assert (change.test, change.n, change.differing, change.p) == ("exact", 1, 1, None)


def test_bytes_out_of_nothing_are_a_change_too():
    sides = [
        table(a_row(a_cell(0), [Measurement("kv_host_bytes", size, "decode")], v)) for size, v in ((0, "a"), (8, "b"))
    ]
    assert verdicts(compare(*sides)) == {"kv_host_bytes": "worse"}
    assert verdicts(compare(*reversed(sides))) == {"kv_host_bytes": "better"}


def test_rounding_is_no_change_of_what_a_model_says():
    sides = [
        table(a_row(a_cell(0), [Measurement("nll", 2.5 + error * n, request=n) for n in range(9)], version))
        for error, version in ((0, "a"), (1e-8, "b"))
    ]
    assert verdicts(compare(*sides)) == {"nll": "same"}


def test_right_and_wrong_are_compared_item_by_item():
    """Nine facts lost and none gained is beyond chance; two are not."""
    for lost, verdict in ((9, "worse"), (2, "no change")):
        outcomes = [
            [Measurement("retention_correct", float(n >= gone), f"depth={n % 2}", request=n) for n in range(20)]
            for gone in (0, lost)
        ]
        sides = [table(a_row(a_cell(0), outcome, version)) for outcome, version in zip(outcomes, "ab", strict=True)]
        found = compare(*sides)
        assert verdicts(found) == {"retention_correct": verdict}
        change = found.by_cell[0]
        assert (change.test, change.scale, change.n) == ("McNemar", "difference", 20)
        assert change.effect == pytest.approx(-lost / 20)


def test_numbers_of_a_model_are_exact():
    sides = [
        table(a_row(a_cell(0), [Measurement("ttft_s", value, repeat=0)], version, source="model"))
        for value, version in ((1.0, "a"), (1.001, "b"))
    ]
    found = compare(*sides)
    assert [(item.metric, item.source, item.test, item.verdict) for item in found.metrics] == [
        ("ttft_s", "model", "exact", "worse")
    ]


def test_what_cannot_be_compared_is_counted():
    one = [Measurement("ttft_s", 1.0, repeat=0)]
    a = table(
        a_row(a_cell(0), one),
        a_row(a_cell(1), one),
        a_row(a_cell(2), one),
        a_row(a_cell(3), status="oom"),
        a_row(a_cell(4), [*one, Measurement("tpot_s", 1.0)]),
    )
    b = table(
        a_row(a_cell(0), one, "a"),  # the very same row
        a_row(a_cell(1), version="b", status="error"),
        a_row(a_cell(3), version="b", status="oom"),
        a_row(a_cell(4), one, "b"),
        a_row(a_cell(5), one, "b"),
    )
    found = compare(a, b)
    assert (found.only_in_a, found.only_in_b, found.same_rows) == (1, 1, 1)
    assert found.statuses == {("ok", "ok"): 2, ("ok", "error"): 1, ("oom", "oom"): 1}
    assert found.one_sided == {("tpot_s", "a"): 1}
    assert verdicts(found) == {"ttft_s": "too few"}, "one repeat of one cell"
    assert found.is_worse, "a cell that no longer comes to numbers"


def test_what_differs_around_the_numbers_is_named():
    value = [Measurement("ttft_s", 1.0, repeat=0)]
    a = table(*(a_row(a_cell(n), value, parts={"package:torch": "1"}) for n in range(3)))
    b = table(
        *(
            a_row(a_cell(n), value, "b", parts={"package:torch": "2", "data": "x"}, provenance={"host": "there"})
            for n in range(3)
        )
    )
    assert [(row["name"], row["a"], row["b"], row["pairs"]) for row in compare(a, b).differences] == [
        ("data", None, "x", 3),
        ("package:torch", "1", "2", 3),
        ("host", "here", "there", 3),
    ]


def test_two_rows_of_different_cells_are_one_pair_when_asked():
    sides = campaign(1, "a", 1), table(a_row(a_cell(7), timed(np.random.default_rng(2), 7), "b"))
    assert compare(*sides).cells == {}
    found = compare(*sides, by="")
    assert len(found.cells) == len(found.other_cells) == 1
    assert verdicts(found)["kv_device_bytes"] == "worse"


def test_nothing_at_all_is_no_error():
    found = compare(ROW.empty_table(), ROW.empty_table())
    assert found.metrics == found.by_cell == [] and not found.is_worse


def test_rows_that_are_none_are_words_and_no_traceback():
    """Rows may come from anywhere: no cell in them, metrics nobody knows, values that are none."""
    odd = [Measurement("made_up", 1.0), Measurement("ttft_s", float("nan")), Measurement("ttft_s", -1.0, repeat=0)]
    sides = [
        Selection(
            "x", "fingerprint", "x", table(a_row(a_cell(0), [*odd, Measurement("kv_host_bytes", size)], v) | cell)
        )
        for v, size, cell in (("a", 1.0, {"cell": "{}"}), ("b", 2.0, {"cell": "[no json"}))
    ]
    found = compare(*(side.rows for side in sides), by="")
    assert verdicts(found) == {"kv_host_bytes": "worse"}
    assert "kv_host_bytes" in as_text(*sides, found, 20)
    assert json.loads(as_json(*sides, found))["pairs"] == 1 and "kv_host_bytes" in as_csv(found)
