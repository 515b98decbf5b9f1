"""What a driver makes of a Ray that does not do what it should; Ray itself is a script here."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import kvfrontier
import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.run import meeting, ray_cluster, ray_dispatch
from kvfrontier.run.meeting import Meeting
from kvfrontier.run.placement import Placement
from kvfrontier.run.ray_dispatch import RayPool
from kvfrontier.run.schedule import Died, Up

ONE_GPU = Placement(workers=4, threads=2, gpus=1.0, address="head:6379")


class RayError(Exception):
    """Base of Ray's errors."""


class ScriptedRay:
    """Every actor answers its meeting with `answer`: a Meeting, an error, or None for silence. `nodes`: resources."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, answer, nodes=(), free=None):
        self.answer, self._nodes, self._free, self.killed, self.options = answer, nodes, free, [], None

    def remote(self, actor_class):
        def options(**given):
            self.options = given
            return SimpleNamespace(remote=lambda *arguments: self._actor())

        return SimpleNamespace(options=options)

    def _actor(self):
        return SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda *arguments: object()))

    def wait(self, calls, num_returns, timeout):
        return ([], calls) if self.answer is None else (calls[:1], calls[1:])

    def get(self, call):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def kill(self, actor, no_restart):
        self.killed.append(actor)

    def nodes(self):
        return [{"Alive": True, "Resources": resources} for resources in self._nodes]

    def available_resources(self):
        return self._free or {}


def a_pool(ray, placement=ONE_GPU):
    home = SimpleNamespace(
        on_this_machine=False, options={"scheduling_strategy": "SPREAD"}, mark_for_workers=lambda: None,
        check=lambda: None,
    )  # fmt: skip
    return RayPool(ray, home, placement, SimpleNamespace(root=Path("/")), Path("/"), "abcdef01")


def started(answer, **more):
    ray = ScriptedRay(answer, **more)
    pool = a_pool(ray)
    pool.start(0)
    return ray, pool


def test_an_actor_takes_what_its_engine_needs_and_is_up_when_it_says_so():
    ray, pool = started(Meeting(7, "node1"))
    assert (ray.options["num_cpus"], ray.options["num_gpus"], ray.options["max_restarts"]) == (2, 1.0, 0)
    assert "runtime_env" not in ray.options
    assert pool.wait(0.0) == [(0, Up("node1"))]


@pytest.mark.parametrize("on_this_machine", [True, False])
def test_an_engine_of_another_environment_gets_its_python_and_our_code(on_this_machine):
    """On a cluster our code travels as that of all workers; here it is where this process has it."""
    ray = ScriptedRay(Meeting(7, "node1"))
    pool = a_pool(ray, replace(ONE_GPU, environment="fake"))
    pool.home.on_this_machine = on_this_machine
    pool.start(0)
    own = ray.options["runtime_env"]
    assert "/envs/fake-" in own["py_executable"] and sys.executable in own["py_executable"]
    code = str(Path(kvfrontier.__file__).parents[1])
    assert own["env_vars"].get("PYTHONPATH", "").split(":")[0] == (code if on_this_machine else "")


def test_a_node_that_does_not_see_the_results_stops_the_shard():
    _, pool = started(Meeting(7, "node9", lacks="/data/results/trial"))
    with pytest.raises(Unavailable, match=r"node9 does not see /data/results/trial: .* Set KVFRONTIER_RESULTS"):
        pool.wait(0.0)


@pytest.mark.parametrize(
    "error",
    [
        "The actor died: an error raised in its creation task ... ModuleNotFoundError: No module named 'pyarrow'",
        "Failed to set up runtime environment. RuntimeEnvSetupError: Could not create the actor",
        "The actor failed to import on the worker. This may be because ... AttributeError: Can't get attribute 'x'",
    ],
)
def test_a_node_that_cannot_run_our_code_stops_the_shard_with_the_reason(error):
    _, pool = started(RayError(error))
    reason = r"cannot run kvfrontier: (Module.*'pyarrow'|Failed to set up|Attribute).* envs/core.txt"
    with pytest.raises(Unavailable, match=reason):
        pool.wait(0.0)


def test_a_worker_that_dies_with_its_node_is_told_from_one_that_dies_alone():
    _, pool = started(RayError("The actor is dead because its node has died. Node Id: 4f2c"))
    [(_, death)] = pool.wait(0.0)
    assert isinstance(death, Died) and death.is_lost and not death.is_oom
    _, pool = started(RayError("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"))
    [(_, death)] = pool.wait(0.0)
    assert not death.is_lost


def test_a_request_that_no_node_can_ever_satisfy_is_told_after_a_while(monkeypatch):
    _, pool = started(None, nodes=[{"CPU": 64.0}, {"CPU": 1.0, "GPU": 8.0}])
    assert pool.wait(0.0) == []
    monkeypatch.setattr(ray_dispatch, "START_PATIENCE_S", -1.0)
    with pytest.raises(Unavailable, match=r"needs 2 CPUs and 1 GPU.* no node .*64 CPUs, 0 GPUs; 1 CPUs, 8 GPUs"):
        pool.wait(0.0)


def test_a_full_cluster_is_waited_for_and_one_that_starts_nothing_is_not(monkeypatch, caplog):
    monkeypatch.setattr(ray_dispatch, "START_PATIENCE_S", -1.0)
    _, pool = started(None, nodes=[{"CPU": 8.0, "GPU": 4.0}], free={"CPU": 8.0, "GPU": 0.0})
    assert pool.wait(0.0) == [] and "all of the cluster is in use" in caplog.text
    _, pool = started(None, nodes=[{"CPU": 8.0, "GPU": 4.0}], free={"CPU": 8.0, "GPU": 1.0})
    with pytest.raises(Unavailable, match="no worker came up"):
        pool.wait(0.0)


def test_what_a_node_holds_is_bounded_by_its_scarcest_resource():
    assert ray_cluster.fits({"CPU": 64.0, "GPU": 8.0}, ONE_GPU) == 8
    assert ray_cluster.fits({"CPU": 5.0, "GPU": 8.0}, ONE_GPU) == 2
    assert ray_cluster.fits({"CPU": 64.0}, ONE_GPU) == 0
    assert ray_cluster.fits({"CPU": 64.0}, Placement(threads=2)) == 32


def test_a_worker_looks_for_the_folders_of_its_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(meeting, "FILE_SYSTEM_PATIENCE_S", 0.1)
    sign = tmp_path / "results" / ".driver-1"
    assert meeting.meet(None, None, tmp_path) == Meeting(os.getpid(), os.uname().nodename)
    assert meeting.meet(None, sign, tmp_path).lacks == str(sign)
    sign.parent.mkdir()
    sign.touch()
    assert meeting.meet(None, sign, tmp_path).lacks == str(tmp_path / "config")
    (tmp_path / "config").mkdir()
    assert meeting.meet(None, sign, tmp_path).lacks == ""


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:", ":6379", "head:http"])
def test_an_address_that_is_none_is_told_what_one_looks_like(address):
    with pytest.raises(Unavailable, match="expected HOST:PORT of its head node"):
        ray_cluster._checked(address)


def test_auto_means_the_address_in_the_environment_or_the_cluster_of_this_machine(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_cluster._checked("auto") == "auto"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"at 127\.0\.0\.1:9: .*refused.* Is it up"):
        ray_cluster._checked("auto")


@pytest.mark.parametrize(
    ("mode", "has_token", "asks", "result"),
    [
        ("", False, False, "disabled"),
        ("", True, False, "disabled"),  # a token that lies about must not keep us out of an open cluster
        ("", True, True, "token"),
        ("", False, True, "asks for a token: put it in"),
        ("token", True, True, "token"),
        ("disabled", True, True, "asks for a token.* unset RAY_AUTH_MODE"),
        ("", True, "another", "the token in RAY_AUTH_TOKEN is not the one"),
    ],
)
def test_a_token_is_used_where_the_cluster_asks_for_one(mode, has_token, asks, result, monkeypatch, tmp_path):
    def probe(address, mode):
        return "AuthenticationError: InvalidAuthToken" if asks and (mode != "token" or asks == "another") else ""

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret" if has_token else "")
    monkeypatch.setattr(ray_cluster, "_probe", probe)
    if len(result.split()) == 1:
        assert ray_cluster._authentication("head:6379") == result
    else:
        with pytest.raises(Unavailable, match=result) as told:
            ray_cluster._authentication("head:6379")
        assert "secret" not in str(told.value)


def test_versions_that_differ_are_told_as_such():
    assert "same versions of Ray and Python" in ray_cluster._why_not("head:6379", "Version mismatch: The cluster ...")


def test_workers_get_our_package_and_where_files_are_but_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("HF_HOME", "/shared/hub")
    environment = ray_cluster._for_workers(ONE_GPU)
    assert [Path(path).name for path in environment["py_modules"]] == ["kvfrontier"]
    assert environment["env_vars"]["HF_HOME"] == "/shared/hub" and environment["env_vars"]["OMP_NUM_THREADS"] == "2"
    assert "secret" not in str(environment)
