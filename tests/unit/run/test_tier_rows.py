"""Rows of cells whose tokens lie in another memory: what they say of it, what was copied, and what is refused."""

from __future__ import annotations

import errno

import pytest
from kvfrontier.cache import file_shelf
from tiny_project import SPEED, TinyProject

TIERS = [
    {"name": "offload", "link_gigabytes_per_s": 100.0},
    {"name": "disk", "io": "direct"},
    {"name": "stack", "evict": "h2o", "store": "int8", "tier": {"name": "offload", "prefetch": "off"}},
]


@pytest.fixture
def rows(tmp_path):
    """The row of each strategy, by its name."""
    project = TinyProject(tmp_path)

    def run(*strategies):
        cells, worker = project.cells(SPEED, strategy=list(strategies)), project.worker()
        return {cell.cell.strategy.name: project.run(worker, cell)[1] for cell in cells}

    return run


def values(row, metric, phase):
    return {value["value"] for value in row["measurements"] if (value["metric"], value["phase"]) == (metric, phase)}


def test_they_say_what_the_memories_are_and_what_was_copied(rows):
    found = rows("full", *TIERS)
    assert {row["status"] for row in found.values()} == {"ok"}
    facts = {name: (row["provenance"].get("kv_tier"), row["provenance"].get("kv_link")) for name, row in found.items()}
    same_ram = "host memory: the same RAM as the device's"
    assert facts["full"] == (None, None)
    assert facts["offload"] == (same_ram, "emulated, 100 GB/s") and facts["stack"] == (same_ram, "real")
    assert facts["disk"][0].startswith("files on ") and facts["disk"][1] == "real"
    held = values(found["full"], "kv_device_bytes", "decode")
    assert values(found["offload"], "kv_host_bytes", "decode") == held
    assert values(found["disk"], "kv_disk_bytes", "decode") == held
    assert values(found["offload"], "kv_device_bytes", "decode") == {0}
    token = held.pop() / (64 + 7)
    assert values(found["offload"], "stored_bytes", "prefill") == {64 * token}
    assert values(found["offload"], "stored_bytes", "decode") == {token}
    assert values(found["offload"], "fetched_bytes", "decode") == {(64 + 3) * token}
    assert not values(found["full"], "fetched_bytes", "decode")


def test_a_file_system_that_refuses_is_a_row_with_the_reason(rows, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(file_shelf, "fcntl", refuse)
    row = rows({"name": "disk", "io": "direct"})["disk"]
    assert row["status"] == "unsupported" and "refuses direct transfers (O_DIRECT)" in row["reason"]
