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


def test_settings_share_a_process_and_one_that_does_not_start_spoils_no_other(vllm_environment, tmp_path):
    space = PackagedModel(tmp_path)
    small = {"name": "vllm", "block_size": BLOCK, "kv_cache_memory_bytes": 2**28}
    no_room = {"name": "vllm", "num_gpu_blocks_override": 2, "max_model_len": 512}
    space.campaign({
        "model": ["smollm2-135m"],
        "engine": [{**small, "max_num_batched_tokens": [64, 256]}, no_room],
        "workload": [{"name": "speed", "text": "generated", "context_tokens": 96, "output_tokens": 6, "repeats": 2}],
        "seed": [0, 1, 2],
    })  # fmt: skip
    told = space.measure()
    (shard,) = space.index().shards
    assert shard.engine == "vllm, 3 settings"
    rows = space.query("FROM cells")
    failed = [row for row in rows if row["engine_num_gpu_blocks_override"] == 2]
    assert len(rows) == 9 and len(failed) == 3, told
    assert {row["status"] for row in rows if row not in failed} == {"ok"}, told
    assert {(row["status"], row["reason_phase"]) for row in failed} == {("error", "load")}
    assert sum("2 cells tried" in row["reason"] for row in failed) == 1, "the third one was not tried"
    log = (space.results / "logs" / "measure" / f"{shard.name}.log").read_text()
    assert log.count("worker 0 is up") in (2, 3), "one more for each failure, but for one at the end"


class PackagedModel(Workspace):
    """Campaigns of the packaged model, run by single commands."""

    def __init__(self, root):
        super().__init__(root)
        for name in ("models.yaml", "data.yaml"):
            shutil.copy(CHECKOUT / "config" / name, root / "config" / name)

    def measure(self):
        """Plan, measure and publish; what was said."""
        told = self.run("kvfrontier", "plan", "trial").stdout
        told += "".join(self.run("kvfrontier", "measure", "trial", shard.name).stdout for shard in self.index().shards)
        return told + self.run("kvfrontier", "store", "trial").stdout

    def query(self, sql):
        """Rows as dicts."""
        with duckdb.connect(self.results / "trial.duckdb", read_only=True) as connection:
            return connection.sql(sql).to_arrow_table().to_pylist()


class BothEngines(PackagedModel):
    """The packaged model on our engine and on vLLM: `speed` on both, `fidelity` where there are logits."""

    def __init__(self, root):
        super().__init__(root)
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
