"""What scripts/bench_vllm.py gives its two sides, in which order, and what it makes of their times."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

CHECKOUT = Path(__file__).parents[2]
STARTED = {"snakemake": "ours", "sweep": "theirs", "latency": "warm"}
TAKES_S = {"warm": [1000.0], "ours": [14.0, 22.0, 18.0], "theirs": [50.0, 50.0, 90.0]}
TIMED_S = 10.0


class Programs:
    """Instead of `subprocess`: notes who is started and with which cache, lets time pass, leaves what a run leaves."""

    def __init__(self):
        self.now, self.started = 0.0, []
        self.left = {side: list(seconds) for side, seconds in TAKES_S.items()}

    def run(self, command, cwd, env, **_):
        words = {Path(word).name for word in command}
        (side,) = (side for word, side in STARTED.items() if word in words)
        cache = Path(env["VLLM_CACHE_ROOT"])
        self.started.append((side, cache, sorted(path.name for path in cache.rglob("*"))))
        cache.mkdir(exist_ok=True)
        (cache / "learnt").write_text("of a model's class")
        getattr(self, side)(cwd)
        self.now += self.left[side].pop(0)
        return SimpleNamespace(returncode=0)

    def warm(self, folder):
        pass

    def ours(self, folder):
        (folder / "results" / "sweep").mkdir(parents=True)
        with duckdb.connect(folder / "results" / "sweep" / "sweep.duckdb") as connection:
            connection.execute("CREATE TABLE cells AS SELECT 'ok' AS status FROM range(4)")
            connection.execute(
                f"CREATE TABLE measurements AS SELECT 'e2e_latency_s' AS metric, {TIMED_S}::DOUBLE AS value"
            )

    def theirs(self, folder):
        for point in range(4):
            (folder / "sweep" / f"{point}").mkdir(parents=True)
            told = json.dumps({"completed": 2, "duration": TIMED_S / 4})
            (folder / "sweep" / f"{point}" / "run=0.json").write_text(told)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("bench_vllm", CHECKOUT / "scripts" / "bench_vllm.py")
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_vllm", bench)  # where its dataclass looks names up
    spec.loader.exec_module(bench)
    programs = Programs()
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=programs.run, DEVNULL=None))
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: programs.now))
    monkeypatch.setattr(bench, "make", lambda environment: None)
    monkeypatch.setattr(bench, "ensure", lambda model: tmp_path / "model")
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "of-the-caller"))
    monkeypatch.chdir(CHECKOUT)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["bench", "--repeats", "1", "--keep", str(tmp_path / "kept"), *arguments])
        bench.main()
        lines = (line.partition("  #")[0] for line in capsys.readouterr().out.splitlines())
        return programs.started, dict(line.split("=") for line in lines)

    return call


def test_both_sides_find_one_warm_cache(run):
    started, _ = run()
    assert [side for side, *_ in started] == ["warm", "ours", "theirs"]
    (cache,) = {cache for _, cache, _ in started}
    assert cache.is_absolute() and cache.name not in ("ours", "theirs")
    assert [found for *_, found in started] == [[], ["learnt"], ["learnt"]]


def test_the_sides_take_turns_and_the_ratio_is_the_median_of_the_rounds(run):
    started, told = run("--rounds", "3")
    assert [side for side, *_ in started] == ["warm", "ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert told["vllm_overhead_ratios"] == "0.1,0.3,0.1"
    assert told["vllm_overhead_ratio"] == "0.1"
    assert (told["vllm_ours_overhead_point_s"], told["vllm_theirs_overhead_point_s"]) == ("2", "10")
    assert told["vllm_theirs_round3_sweep_s"] == "90" and told["vllm_theirs_round3_timed_s"] == "10"


def test_no_rounds_are_refused(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("--rounds", "0")
    assert "--rounds: got 0; expected 1 or more" in capsys.readouterr().err
