"""A Ray cluster that others started, joined by its address. Its Python has Ray and our packages, but not kvfrontier."""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import venv
from pathlib import Path

import pytest
import ray
from two_pythons import SENTENCE, TwoPythons
from workspace import CHECKOUT, Workspace, wait_until

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(400)]
TARGET = "results/trial/trial.duckdb"
TOKEN = secrets.token_hex(16)
SITE_PACKAGES = Path(ray.__file__).parents[1]
TWO_NODES = Path(__file__).parents[1] / "two_nodes.py"


class OnCluster:
    """A workspace whose campaigns run on the cluster at `address`."""

    def __init__(self, space: Workspace, cluster: subprocess.Popen[str], address: str):
        self.space, self.cluster, self.address = space, cluster, address
        self.token_file = space.root / "token"
        self.token_file.write_text(TOKEN)

    @property
    def environment(self) -> dict[str, str]:
        """A driver that knows the token by a file and says nothing of a mode, as a user would."""
        clean = {name: value for name, value in self.space.environment.items() if not name.startswith("RAY_")}
        del clean["KVFRONTIER_WORKERS"]
        return {**clean, "RAY_AUTH_TOKEN_PATH": str(self.token_file), "HOME": str(self.space.root)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Snakemake through profiles/ray, in a session of its own; its output goes to output.txt."""
        output = (self.space.root / "output.txt").open("w")
        call = ["snakemake", "-s", str(CHECKOUT / "Snakefile"), "-d", str(self.space.root)]
        call += ["--profile", str(CHECKOUT / "profiles" / "ray"), TARGET, *arguments]
        call += ["--set-resources", f"measure:ray_address={self.address}", "--config", "campaign=trial"]
        return subprocess.Popen(call, env=self.environment, cwd=self.space.root, stdout=output, stderr=output,
                                stdin=subprocess.DEVNULL, text=True, start_new_session=True)  # fmt: skip

    def measure(self, address: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One driver, run to its end, with other settings."""
        shard = self.space.index().shards[0].name
        return subprocess.run(
            ["kvfrontier", "measure", "trial", shard, "--ray-address", address], cwd=self.space.root, text=True,
            env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        )  # fmt: skip

    def raylets_with_workers(self) -> set[int]:
        """Process ids of the nodes on which our workers are."""
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in self.space.processes("ray::EngineWorker")]
        return {int(stat.rpartition(")")[2].split()[1]) for stat in stats}

    def start_and_hold(self, naps: int) -> subprocess.Popen[str]:
        """`start`, and wait until so many naps have begun, none of which ends before `let_go`."""
        begun = self.space.naps_taken().total()
        self.space.hold_after(begun)
        process = self.start()
        wait_until(lambda: self.space.naps_taken().total() == begun + naps, 200, "the workers are in their cells")
        return process


@pytest.fixture(scope="module")
def on_cluster(tmp_path_factory):
    space = TwoPythons(tmp_path_factory.mktemp("cluster"))
    shape = (space.root / "config" / "models.yaml").read_text()
    (space.root / "config" / "models.yaml").write_text(shape + shape.replace("toy:", "toy2:"))
    bare = space.root / "bare"
    venv.create(bare, with_pip=False)
    environment = {
        **{name: value for name, value in space.environment.items() if not name.startswith(("RAY_", "KVFRONTIER_"))},
        "KVFRONTIER_NAPS": str(space.naps),
        "PYTHONPATH": f"{SITE_PACKAGES}:{space.root}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "SPT_NOENV": "1",
    }
    found = subprocess.run([bare / "bin" / "python", "-c", "import kvfrontier"], env=environment, capture_output=True)
    assert found.returncode != 0, "the nodes are meant to lack kvfrontier"
    folder = tempfile.mkdtemp(prefix="two-", dir="/tmp")  # short: sockets lie in it
    log = (space.root / "cluster.log").open("w")
    cluster = subprocess.Popen(
        [bare / "bin" / "python", TWO_NODES, folder], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=log, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        address = cluster.stdout.readline().strip()
        assert address, (space.root / "cluster.log").read_text()
        yield OnCluster(space, cluster, address)
    finally:
        cluster.stdin.close()
        try:
            cluster.wait(30)
        finally:
            for pid in space.processes(""):
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def campaign(on_cluster, seeds, timeout_s=600, **axes):
    on_cluster.space.campaign({"workload": [{"name": "nap"}], "seed": list(seeds), **axes}, timeout_s=timeout_s)


def plan(on_cluster, seeds, **settings):
    """The same, and its plan, which `measure` reads."""
    campaign(on_cluster, seeds, **settings)
    assert on_cluster.space.snakemake("-n").returncode == 0


def test_a_cluster_that_does_not_let_us_in_is_told_quickly_with_what_to_do(on_cluster):
    plan(on_cluster, [0])
    wrong = on_cluster.measure(on_cluster.address, RAY_AUTH_TOKEN="f" * 32)
    assert wrong.returncode == 2
    assert "the token in RAY_AUTH_TOKEN is not the one of the Ray cluster" in wrong.stdout
    missing = on_cluster.measure(on_cluster.address, RAY_AUTH_TOKEN_PATH=str(on_cluster.space.root / "none"))
    assert missing.returncode == 2
    assert "asks for a token: put it in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token" in missing.stdout
    nobody = on_cluster.measure("127.0.0.1:9")
    assert nobody.returncode == 2
    assert "no Ray cluster to use at 127.0.0.1:9" in nobody.stdout and "Is it up" in nobody.stdout
    nonsense = on_cluster.measure("ray://head:10001")
    assert nonsense.returncode == 2 and "expected HOST:PORT of its head node" in nonsense.stdout
    for told in (wrong, missing, nobody, nonsense):
        assert "Traceback" not in told.stdout and TOKEN not in told.stdout and "f" * 32 not in told.stdout


def test_stuck_workers_are_gone_after_ctrl_c_and_after_their_time_and_the_cluster_stays(on_cluster):
    """Half of them hold the interpreter's lock and ignore SIGTERM."""
    space = on_cluster.space
    workloads = [{"name": "nap"}, {"name": "nap", "ending": "stuck"}]
    campaign(on_cluster, [1, 2], workload=workloads)
    process = on_cluster.start_and_hold(4)
    os.kill(process.pid, signal.SIGINT)  # it alone, not its process group
    assert process.wait(60) != 0
    wait_until(lambda: not space.processes("ray::EngineWorker"), 20, "our workers are gone")
    space.let_go()
    plan(on_cluster, [1, 2], workload=workloads, timeout_s=12)
    done = on_cluster.measure(on_cluster.address)
    assert done.returncode == 0, done.stdout
    assert space.statuses() == {("ok", 1): 2, ("timeout", 1): 2}
    wait_until(lambda: not space.processes("ray::EngineWorker"), 20, "our workers are gone again")
    assert on_cluster.cluster.poll() is None and len(space.processes("raylet/raylet")) == 2


def test_an_environment_of_an_engine_is_used_where_a_node_has_it(on_cluster):
    space = on_cluster.space
    assert space.run("kvfrontier", "env", "make", "fake").returncode == 0
    plan(on_cluster, [20], engine=["elsewhere"])
    told = on_cluster.measure(on_cluster.address)
    row = space.row("elsewhere", 20)
    assert row["status"] == "ok" and row["provenance"]["environment"].startswith("fake-"), told.stdout
    plan(on_cluster, [21], engine=["elsewhere"])
    made = next((space.fake.cache / "envs").iterdir())
    made.rename(space.root / made.name)
    told = on_cluster.measure(on_cluster.address)
    row = space.row("elsewhere", 21)
    assert (row["status"], row["reason"]) == ("error", SENTENCE), told.stdout


def test_two_shards_at_once_on_both_nodes_of_which_one_is_lost(on_cluster):
    space = on_cluster.space
    campaign(on_cluster, range(10, 12), model=["toy", "toy2"])
    process = on_cluster.start_and_hold(4)
    assert len(space.processes("bin/kvfrontier measure")) >= 2, "both shards are being measured"
    assert len(on_cluster.raylets_with_workers()) == 2, "both nodes have workers"
    on_cluster.cluster.stdin.write("kill the second\n")
    on_cluster.cluster.stdin.flush()
    assert on_cluster.cluster.stdout.readline() == "removed\n"
    space.let_go()
    assert process.wait(200) == 0, (space.root / "output.txt").read_text()
    assert len(on_cluster.raylets_with_workers()) <= 1
    table = space.run("kvfrontier", "query", "trial", "--format", "csv",
                      "SELECT status, count(*) AS n, max(attempt) AS attempt FROM cells GROUP BY ALL")  # fmt: skip
    assert table.stdout.splitlines()[-1] == "ok,4,1", table.stdout
    written = [path for path in (space.root / "results").rglob("*") if path.is_file()]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()], "the token was written down"
    assert not list((space.root / "results" / "trial").glob(".driver-*"))
