"""Campaigns on a real Slurm: two nodes and fake GPUs that tests/slurm/start brings up on this machine.

The cases run beside each other, as campaigns of several users do, under what a cluster likes to bring along: a foreign
Ray on the node whose address is in the environment, and a TMPDIR far too long for Ray's sockets.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from kvfrontier.run.slurm_site import status_command
from kvfrontier.run.span_node import Node
from kvfrontier.store.rows import read_table
from tiny import tiny_llama
from toy_tokenizer import VOCAB, toy_tokenizer
from workspace import PLUGINS, Workspace, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

CLUSTER = Path(__file__).parents[1] / "slurm"
AT_ONCE = 3
"""Cases beside each other; two cores carry no more."""
SLOW_S = 300
GPU = {"kind": "cuda", "memory_bytes": 80e9}
SEEN = """
import os, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
ray.init(sys.argv[1], log_to_driver=False)
print(len(ray.nodes()), len(ray._private.state.state.job_table()))
"""


class SlurmSpace(Workspace):
    """Its campaigns run through profiles/slurm."""

    profile = "slurm"
    surroundings: dict[str, str]

    def __init__(self, root: Path, **surroundings: str):
        root.mkdir()
        super().__init__(root)
        self.surroundings = surroundings
        site = root / "sitecustomize.py"
        paths = {"engines": CLUSTER / "engines", "workloads": PLUGINS}
        lines = [
            f"import kvfrontier.{name}\nkvfrontier.{name}.__path__.append({str(path)!r})\n"
            for name, path in paths.items()
        ]
        site.write_text("".join(lines))

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in super().environment.items() if name != "KVFRONTIER_WORKERS"}
        return {**inherited, **self.surroundings}

    def command(self, *arguments: str, seconds: int = 500) -> list[str]:
        call = super().command(*arguments, seconds=seconds)
        return [*call[:-2], "--slurm-init-seconds-before-status-checks", "3", *call[-2:]]

    def starts(self) -> list[dict[str, str]]:
        """Where each nap was started."""
        path = self.naps.with_suffix(".where")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def jobs(self) -> list[str]:
        """Slurm's numbers of the jobs that naps were started in, in order."""
        return list(dict.fromkeys(start["SLURM_JOB_ID"] for start in self.starts()))


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True, timeout=30).stdout.strip()


def job(number: str, *fields: str) -> tuple[str, ...]:
    """Fields of `scontrol show job`."""
    told = slurm("scontrol", "show", "job", number)
    return tuple(re.search(rf"\b{name}=(\S+)", told)[1] for name in fields)


def naps(count: int, **settings: object) -> dict:
    return {"workload": [{"name": "nap", **settings}], "seed": list(range(count))}


def two_models_on_two_kinds_of_gpus(space: SlurmSpace) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        folder = space.root / "models" / name
        tiny_llama(vocab=VOCAB, seed=seed).save_pretrained(folder)
        toy_tokenizer().save_pretrained(folder)
    space._write("models.yaml", {name: {"folder": f"models/{name}"} for name in ("one", "two")})
    places = {"h100": {"constraint": "h100"}, "a100": {"gpu_model": "a100"}}
    space._write("devices.yaml", {name: {**GPU, "slurm": place} for name, place in places.items()})
    speed = {"name": "speed", "text": "generated", "context_tokens": 32, "output_tokens": 2, "repeats": 1}
    axes = {
        "model": ["one", "two"],
        "engine": ["pretend"],
        "device": list(places),
        "workload": [{"name": "nap"}, speed],
    }
    space.campaign(axes, shard={"workers": 2}, device=None)
    run = space.snakemake()
    assert run.returncode == 0, run.stdout
    assert (space.results / "report.html").exists()
    assert (space.results / "verdict.txt").read_text() == "8 ok\n"
    rows, _ = read_table(space.results, ["cell", "provenance"])
    found = [(json.loads(row["cell"]), dict(row["provenance"])) for row in rows.to_pylist()]
    nodes = {(cell["device"], facts["node"]) for cell, facts in found}
    assert nodes == {("h100", "node1"), ("a100", "node2")}
    assert len({facts["slurm_job_id"] for _, facts in found}) == 4, "one job a shard"
    for start in space.starts():
        assert re.fullmatch("[0-3]", start["CUDA_VISIBLE_DEVICES"]), (
            start
        )  # of the two that the job has, its worker's own
        assert job(start["SLURM_JOB_ID"], "TresPerJob")[0] in ("gres:gpu:2", "gres:gpu:a100:2")
    assert "Nothing to be done" in space.snakemake("-n").stdout


def two_campaigns_at_once_of_which_one_has_a_failing_cell(space: SlurmSpace) -> None:
    axes = {"workload": [{"name": "nap", "ending": ending} for ending in ("ok", "error")]}
    space.campaign(axes)
    trial = space.root / "config" / "campaigns" / "trial.yaml"
    (trial.parent / "other.yaml").write_text(
        trial.read_text().replace("ending: error", "ending: ok\n    batch_size: 2")
    )
    defaults = ["--default-resources", "slurm_partition=brief", "max_runtime=60", "mem_mb=1000", "disk_mb=1000"]
    other = space.command(*defaults)[:-1]
    with subprocess.Popen(
        [*other, "campaign=other"], env=space.environment, cwd=space.root, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as beside:  # fmt: skip
        run = space.snakemake()
        told, _ = beside.communicate()
    assert beside.returncode == 0, told
    assert (space.root / "results" / "other" / "verdict.txt").read_text() == "2 ok\n"
    partitions = {start["SLURM_JOB_PARTITION"]: start["SLURM_JOB_ID"] for start in space.starts()}
    assert set(partitions) == {"brief", "gpu"}
    assert job(partitions["brief"], "TimeLimit") == ("00:10:00",), "the longest that the partition allows"

    assert run.returncode != 0
    assert "Traceback" not in run.stdout and "no such luck" in run.stdout
    assert (space.results / "report.html").exists(), "failed cells must not cost the report"
    command = re.search(r"log: (kvfrontier log .+)", run.stdout)[1]
    text = space.run(*command.split()).stdout
    assert "raise error" in text
    assert re.search(rf"^Slurm job +{partitions['gpu']}$", text, re.MULTILINE)
    log = re.search(r"^log +(.+)$", text, re.MULTILINE)[1]
    assert f"Slurm job {partitions['gpu']} on node" in Path(log).read_text()


def a_job_that_meets_its_time_limit(space: SlurmSpace) -> None:
    """The third cell waits; the job is killed at its limit of a minute, and the next one has more and goes on."""
    space.campaign(naps(3), shard={"workers": 1})
    space.hold_after(2)
    with _started(space, "--set-resources", "measure:runtime=1 if attempt == 1 else 10") as run:
        wait_until(lambda: len(space.jobs()) == 2, SLOW_S, "a second job goes on")
        space.let_go()
        told, _ = run.communicate()
    assert run.returncode == 0, told
    assert "SLURM status is: 'TIMEOUT'" in told
    first, second = space.jobs()
    assert job(first, "JobState", "TimeLimit") == ("TIMEOUT", "00:01:00")
    memory, more = (int(job(number, "MinMemoryNode")[0].removesuffix("M")) for number in (first, second))
    assert more == memory * 3 // 2
    assert sorted(space.naps_taken().values()) == [1, 1, 2]
    assert space.statuses() == {("ok", 1): 3}


def half_the_jobs_are_cancelled(space: SlurmSpace) -> None:
    """Two jobs of two cells each; the one that is cancelled has a cell in flight, and perhaps one that is done."""
    space.campaign(naps(4), shard={"max_cells": 2, "workers": 1})
    space.hold_after(2)
    with _started(space, "--retries", "0") as run:
        wait_until(lambda: len(space.jobs()) == 2 and len(space.starts()) > 2, SLOW_S, "both jobs run")
        *_, last = space.starts()
        slurm("scancel", last["SLURM_JOB_ID"])
        wait_until(lambda: job(last["SLURM_JOB_ID"], "JobState") == ("CANCELLED",), 60, "it is cancelled")
        kept = space.naps_taken() - Counter(start["nap"] for start in space.starts()[2:])
        space.let_go()
        told, _ = run.communicate()
    assert run.returncode != 0 and told.count("SLURM status is: 'CANCELLED'") == 1, told
    assert set(space.statuses()) == {("ok", 1)}
    again = space.snakemake()
    assert again.returncode == 0, again.stdout
    assert space.statuses() == {("ok", 1): 4}
    assert len(kept) == 2 and all(space.naps_taken()[nap] == 1 for nap in kept), "nothing is measured twice"
    assert sum(count > 1 for count in space.naps_taken().values()) == 1, "what was in flight is"
    assert not space.processes("ray"), "a cancelled job leaves no process"


def a_preempted_job_goes_on(space: SlurmSpace) -> None:
    space._write("devices.yaml", {"fake": {"kind": "cpu", "memory_bytes_per_s": 2e10, "flops_per_s": 1e11,
                                           "slurm": {"partition": "scavenge"}}})  # fmt: skip
    space.campaign(naps(3), shard={"workers": 1})
    space.hold_after(2)
    with _started(space, "--set-resources", "measure:gpu=1", "measure:gpu_model=h100") as run:
        wait_until(lambda: len(space.starts()) >= 3, SLOW_S, "the third cell runs")
        (number,) = space.jobs()
        # The jobs of other cases may take its GPU, too, at any time: what counts is from here on, and in all.
        starts, restarts = len(space.starts()), int(*job(number, "Restarts"))
        slurm("sbatch", "-p", "gpu", "--gpus=h100:4", "--mem=100", "--output=/dev/null", "--wrap", "sleep 1")
        wait_until(lambda: int(*job(number, "Restarts")) > restarts, SLOW_S, "the job is put back into the queue")
        wait_until(lambda: _hasten(number) and len(space.starts()) > starts, SLOW_S, "the job goes on")
        space.let_go()
        told, _ = run.communicate()
        restarts = int(*job(number, "Restarts"))
    assert run.returncode == 0, told
    assert space.jobs() == [number]
    assert len(space.naps_taken()) == 3 and sum(space.naps_taken().values()) <= 3 + restarts, "a nap a restart at most"
    assert space.statuses() == {("ok", 1): 3}


def a_shard_spans_two_nodes(space: SlurmSpace) -> None:
    space.campaign(naps(6, seconds=1.0), shard={"nodes": 2})
    run = space.measure_all()
    assert run.returncode == 0, run.stdout
    assert len(space.jobs()) == 1
    rows, _ = read_table(space.results, ["status", "provenance"])
    facts = [dict(row["provenance"]) for row in rows.to_pylist()]
    assert {fact["node"] for fact in facts} == {"node1", "node2"} and len(facts) == 6
    assert space.statuses() == {("ok", 1): 6}
    assert not list((space.results / "running").iterdir()), "address and token of the job's Ray stay nowhere"
    assert not space.processes("ray")


CASES = [
    a_job_that_meets_its_time_limit,
    a_preempted_job_goes_on,
    two_models_on_two_kinds_of_gpus,
    half_the_jobs_are_cancelled,
    a_shard_spans_two_nodes,
    two_campaigns_at_once_of_which_one_has_a_failing_cell,
]


@pytest.fixture(scope="module")
def cluster():
    """Started here unless it runs already. Where it cannot be had the tests skip; under CI that is a failure."""
    has_run = subprocess.run(["scontrol", "ping"], capture_output=True).returncode == 0 if _has("scontrol") else False
    options = [] if os.environ.get("CI") else ["--no-install"]
    told = subprocess.run([CLUSTER / "start", *options], text=True, capture_output=True)
    if told.returncode == 77 and not os.environ.get("CI"):
        pytest.skip(told.stderr.strip())
    assert told.returncode == 0, told.stderr
    yield
    if not has_run:
        subprocess.run([CLUSTER / "stop", "--purge"], check=True)


@pytest.fixture(scope="module")
def foreign_ray():
    """Somebody else's Ray on the same machine: its address, and its node, which must outlive all our jobs."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as folder:
        node = Node(Path(folder), {**os.environ, "RAY_AUTH_MODE": "disabled"})
        yield node.start_head(), node
        node.stop()


@pytest.fixture(scope="module")
def outcomes(cluster, foreign_ray, tmp_path_factory, request):
    """Case -> what becomes of it: those that were selected, beside each other."""
    root = tmp_path_factory.mktemp("slurm")
    long = root / ("x" * 110)
    long.mkdir()
    wanted = {
        item.callspec.params["case"] for item in request.session.items if "case" in getattr(item, "fixturenames", ())
    }
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        futures: dict[object, Future] = {}
        for number, case in enumerate(case for case in CASES if case in wanted):
            space = SlurmSpace(root / str(number), RAY_ADDRESS=foreign_ray[0], TMPDIR=str(long))
            futures[case] = pool.submit(case, space)
        yield futures
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_on_a_cluster(case, outcomes):
    outcomes[case].result()


def test_without_accounting_jobs_are_asked_after_by_squeue(cluster):
    status_command.cache_clear()
    assert status_command() == "squeue"


def test_a_foreign_ray_has_seen_nothing_of_it(outcomes, foreign_ray):
    address, node = foreign_ray
    wait(outcomes.values())
    assert node.is_alive
    told = subprocess.run([sys.executable, "-c", SEEN, address], text=True, capture_output=True, timeout=120)
    assert told.stdout.split() == ["1", "1"], told.stdout + told.stderr  # one node, and no driver but the one that asks


def _started(space: SlurmSpace, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        space.command(*arguments), env=space.environment, cwd=space.root, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _hasten(number: str) -> bool:
    """Slurm waits a minute or two before it starts a requeued job: not here."""
    subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], capture_output=True)
    time.sleep(1)
    return True


def _has(program: str) -> bool:
    return subprocess.run(["which", program], capture_output=True).returncode == 0
