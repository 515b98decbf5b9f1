"""vLLM beside our engine in one campaign, planned, measured and stored by commands. On a CPU."""

from __future__ import annotations

import shutil

import duckdb
import pytest
from workspace import CHECKOUT, Workspace

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
BLOCK = 32
VLLM_LABEL = f"vllm(block_size={BLOCK})"


def test_a_campaign_shows_both_engines_in_one_frontier(vllm_environment, tmp_path):
    space = BothEngines(tmp_path)
    told = space.measure()
    rows = {(row["engine"], row["strategy"]): row for row in space.query("FROM cells WHERE workload = 'speed'")}
    assert {key: row["status"] for key, row in rows.items()} == {
        ("torch", "full"): "ok", ("vllm", "full"): "ok",
        ("torch", "streaming_llm"): "ok", ("vllm", "streaming_llm"): "unsupported",
    }, told  # fmt: skip
    facts = {key: dict(row["provenance"]) for key, row in rows.items()}
    ours, theirs = facts["torch", "full"], facts["vllm", "full"]
    assert theirs["environment"] == vllm_environment.folder.name and "environment" not in ours
    assert theirs["vllm"] == vllm_environment.version("vllm") and theirs["vllm"].endswith("+cpu")
    assert {row["source"] for row in rows.values()} == {"measured"}
    assert rows["vllm", "full"]["achieved_budget"] == 1.0
    shown = space.run("kvfrontier", "frontier", "trial").stdout
    assert "smollm2-135m · torch · fake" in shown and "smollm2-135m · vllm(" in shown
    together = shown.partition("smollm2-135m · all engines · fake")[2].splitlines()
    lines = {tuple(line.split()[:2]): line for line in together if "KL" in line}
    assert "KL 0.000 nat  torch" in lines[VLLM_LABEL, "full"] and "KL 0.000 nat  torch" in lines["torch", "full"]
    assert "KL 0.000 nat" not in lines["torch", "streaming_llm"] and len(lines) == 3
    metrics = {row["metric"] for row in space.query("FROM summary s JOIN cells USING (cell_id) WHERE engine = 'vllm'")}
    refused = space.query("FROM cells WHERE workload = 'arrivals' AND engine = 'torch'")
    assert {row["reason"] for row in refused if row["strategy"] == "full"} == {
        "engine torch does not offer schedule, which workload arrivals needs; engine vllm does"
    }
    assert metrics >= {
        "goodput_requests_per_s", "within_limits", "queue_s", "request_latency_s",
        "ttft_s", "tpot_s", "output_tokens_per_s", "preemptions", "kv_peak_blocks", "kv_device_bytes",
        "kv_reserved_bytes", "kv_waste_bytes", "prefix_hit_rate",
    }  # fmt: skip


class BothEngines(Workspace):
    """The packaged model on our engine and on vLLM: `speed` on both, `fidelity` where there are logits."""

    def __init__(self, root):
        super().__init__(root)
        for name in ("models.yaml", "data.yaml"):
            shutil.copy(CHECKOUT / "config" / name, root / "config" / name)
        small = {"text": "generated", "context_tokens": 96}
        self.campaign({
            "model": ["smollm2-135m"],
            "engine": ["torch", {"name": "vllm", "block_size": BLOCK}],
            "strategy": ["full", {"name": "streaming_llm", "budget": 0.5}],
            "workload": [
                {"name": "speed", **small, "output_tokens": 6, "batch_size": 2, "repeats": 2},
                {"name": "fidelity", **small, "continuation_tokens": 4, "documents": 2},
                {"name": "arrivals", **small, "output_tokens": 4, "requests": 3, "request_rate": 4, "repeats": 1},
            ],
        })  # fmt: skip

    def measure(self):
        """Plan, measure and publish; what was said."""
        told = self.run("kvfrontier", "plan", "trial").stdout
        told += "".join(self.run("kvfrontier", "measure", "trial", shard.name).stdout for shard in self.index().shards)
        return told + self.run("kvfrontier", "store", "trial").stdout

    def query(self, sql):
        """Rows as dicts."""
        with duckdb.connect(self.results / "trial.duckdb", read_only=True) as connection:
            return connection.sql(sql).to_arrow_table().to_pylist()
