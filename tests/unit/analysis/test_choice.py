"""What the terminal and the report say about a group is computed from its rows."""

from __future__ import annotations

from kvfrontier.analysis.choice import hints, keeps_retention
from kvfrontier.analysis.frontier import Group, compare, count_by_status
from kvfrontier.analysis.table import HEADER, choice_table, remarks, tiers_table, title

ROW = {
    "strategy": "h2o", "strategy_label": "h2o(budget=0.3)", "series": "h2o", "budget": 0.3, "exact": "",
    "retention": 0.5, "retention_low": 0.3, "retention_high": 0.7, "retention_n": 24, "retention_is_read": True,
    "as_full": None, "as_full_low": None, "as_full_high": None, "as_full_n": None, "as_full_is_read": False,
    "acc": None,
    "kl": 0.2, "top1": 0.8, "device_bytes": 300.0, "device_share": 0.3, "host_bytes": 0.0, "file_bytes": 0.0,
    "kv_bytes": 300.0, "kv_share": 0.3, "tokens_per_s": 20.0, "tokens_per_s_low": 19.0, "tokens_per_s_high": 21.0,
    "ttft_s": 1.0, "leads_device": True, "leads_memory": True, "leads_throughput": False, "leads_ttft": False,
}  # fmt: skip
FULL = ROW | {
    "strategy": "full", "strategy_label": "full", "series": "full", "budget": None, "exact": "always",
    "retention": 0.9, "retention_low": 0.8, "retention_high": 0.96, "kl": 0.0, "top1": 1.0,
    "device_bytes": 1000.0, "device_share": 1.0, "kv_bytes": 1000.0, "kv_share": 1.0,
    "tokens_per_s": 10.0, "tokens_per_s_low": 9.0, "tokens_per_s_high": 11.0, "ttft_s": 0.9,
    "leads_device": False, "leads_memory": False,
}  # fmt: skip
FETCHING = ROW | {
    "strategy": "infinigen", "strategy_label": "infinigen(budget=0.3)", "series": "infinigen", "exact": "readings",
    "retention": 0.9, "device_bytes": 100.0, "device_share": 0.1, "host_bytes": 1000.0, "kv_bytes": 1100.0,
    "kv_share": 1.1,
}  # fmt: skip
OFFLOADED = FULL | {
    "strategy": "offload", "strategy_label": "offload", "series": "offload",
    "device_bytes": 20.0, "device_share": 0.02, "host_bytes": 980.0,
}  # fmt: skip
DEVICE, HOST, ALL = (
    f"{memory}, facts must be kept"
    for memory in ("device memory (a GPU's)", "host memory", "memory, all tiers together")
)


def group(*rows):
    return Group("m", "torch", "cpu", "measured", settings={}, rows=list(rows), verdict=None)


def chosen(*rows):
    return {hint.constraint: hint.choice for hint in hints(group(*rows))}


def test_memory_goes_to_the_least_bytes_inside_the_full_caches_interval():
    weak, good = ROW, ROW | {"strategy_label": "h2o(budget=0.5)", "retention": 0.85, "device_bytes": 500.0}
    assert chosen(FULL, weak, good)[DEVICE] == "h2o(budget=0.5)"
    assert chosen(FULL, weak)[DEVICE] == "full"
    assert not {HOST, ALL} & set(chosen(FULL, weak)), "everything lies on the device"


def test_each_memory_has_its_own_choice():
    """The device is a GPU's memory: what lies in host memory takes none of it, and takes all the more of the other."""
    good = ROW | {"strategy_label": "h2o(budget=0.5)", "retention": 0.85, "device_bytes": 500.0, "kv_bytes": 500.0}
    found = chosen(FULL, good, OFFLOADED)
    assert (found[DEVICE], found[HOST], found[ALL]) == ("offload", "h2o(budget=0.5)", "h2o(budget=0.5)")
    (hint,) = [hint for hint in hints(group(FULL, good, OFFLOADED)) if hint.constraint == DEVICE]
    assert "20 B, 2% of the full cache" in hint.because and "980 B lie elsewhere" in hint.because


def test_no_choice_rests_on_retention_that_is_so_by_construction():
    members = group(FULL, FETCHING)
    assert keeps_retention(members) == [FULL]
    assert chosen(FULL, FETCHING)[DEVICE] == "full"
    assert any("infinigen: retention equals the full cache's by construction" in text for text in remarks(members))
    assert choice_table(members).rows[1][4] == "90% [30-70]="
    written = FETCHING | {"retention_is_read": False}  # free answers are decoded: then it is a measurement
    assert keeps_retention(group(FULL, written)) == [FULL, written]
    assert not remarks(group(FULL, written)) and not remarks(group(FULL, OFFLOADED))


def test_without_a_full_cache_nothing_is_said_about_keeping_facts():
    assert keeps_retention(group(ROW)) == []
    assert DEVICE not in chosen(ROW)


def test_no_advice_rests_on_retention_that_shows_nothing():
    weak = Group("m", "torch", "cpu", "measured", {}, [FULL, ROW], {"verdict": "uninformative", "reason": "why"})
    found = {hint.constraint: hint.because for hint in hints(weak)}
    assert DEVICE not in found
    assert "retention" not in found["throughput"] and "divergence 0.2 nat" in found["throughput"]


def test_throughput_names_the_ratio_and_warns_when_intervals_overlap():
    (hint,) = [hint for hint in hints(group(FULL, ROW)) if hint.constraint == "throughput"]
    assert hint.choice == "h2o(budget=0.3)"
    assert "2.00 times" in hint.because
    assert "overlap" not in hint.because
    close = ROW | {"tokens_per_s": 10.5, "tokens_per_s_low": 9.5, "tokens_per_s_high": 11.5}
    (hint,) = [hint for hint in hints(group(FULL, close)) if hint.constraint == "throughput"]
    assert "the intervals overlap" in hint.because


def test_a_group_without_measurements_of_a_kind_says_nothing_about_it():
    bare = dict.fromkeys(ROW) | {"strategy": "full", "strategy_label": "full", "series": "full"}
    assert hints(group(bare)) == []
    assert choice_table(group(bare)).header == ("strategy",)


def test_the_table_marks_what_is_on_the_frontier():
    table = choice_table(group(FULL, ROW))
    assert table.header == tuple(name for name in HEADER if name not in ("as full", "acc")), "no task was measured"
    assert table.rows[1][2] == "300 B*"
    assert table.rows[1][4] == "50% [30-70]"


def test_bytes_elsewhere_have_a_table_of_their_own_where_there_are_any():
    table = tiers_table(group(FULL, ROW, OFFLOADED))
    assert table.header == ("strategy", "budget", "device KV", "host KV", "file KV", "all KV", "all of full")
    assert [row[0] for row in table.rows] == ["full", "offload", "h2o"], "h2o leads in all bytes together"
    assert table.rows[1] == ["offload", "", "20 B", "980 B", "0 B", "1000 B", "100%"]
    assert tiers_table(group(FULL, ROW)) is None


def test_groups_never_mix_measured_and_modelled(connection):
    groups = compare(connection)
    assert [(found.model, found.source) for found in groups] == [
        ("test-alpha", "measured"),
        ("test-beta", "measured"),
        ("test-alpha", "model"),
    ]
    assert "MODELLED" in title(groups[2])
    assert all(found.full for found in groups)


def test_the_longest_context_and_largest_batch_are_shown(connection):
    speed = compare(connection)[0].settings["speed"]
    assert (speed["batch_size"], speed["context_tokens"], speed["others"]) == (4, 1024, 2)


def test_cells_are_counted_by_status(connection):
    assert count_by_status(connection) == {"ok": 72, "unsupported": 3, "oom": 1, "planned": 1}
