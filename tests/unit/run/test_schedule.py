"""The schedule with a pool that is a script: order, timeouts, deaths, recycling, giving up."""

import itertools
from types import SimpleNamespace

import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.run import schedule as scheduling
from kvfrontier.run.bundle import BUNDLE_S, MAX_BUNDLE, QUICK_S
from kvfrontier.run.loading import LOAD_FAILURES
from kvfrontier.run.schedule import Died, Schedule, Up
from kvfrontier.run.worker import Report, Task


def a_task(name: str, attempt: int = 1) -> Task:
    """`name` may say of which engine: `large:c1`."""
    cell = SimpleNamespace(engine=name.rpartition(":")[0])
    return Task(SimpleNamespace(fingerprint=name, cell_id=name, cell=cell), attempt)


class ScriptedPool:
    """Answers each cell with the next of `answers[cell]`: a Report, a Died, or None for silence.

    `never_up`: workers that wait for a device for ever; `unborn`: how many starts end in death.
    """

    never_up = frozenset()
    unborn = 0
    wall_s = 1.0  # of every cell

    def __init__(self, **answers):
        self.answers = {name: list(given) for name, given in answers.items()}
        self.started, self.stopped, self.ran, self.bundles, self.stored = [], [], [], [], set()
        self._busy, self._coming = {}, []

    def start(self, worker):
        self.started.append(worker)
        self._busy.pop(worker, None)
        if worker not in self.never_up:
            self._coming.append(worker)

    def stop(self, worker):
        self.stopped.append(worker)
        self._busy.pop(worker, None)

    def submit(self, worker, tasks, concurrent_cells):
        assert worker not in self._busy, "a worker got two cells at once"
        assert worker not in self._coming, "a worker got a cell before it was up"
        self._busy[worker] = tasks
        self.ran += [(task.planned.fingerprint, concurrent_cells) for task in tasks]
        self.bundles.append([task.planned.fingerprint for task in tasks])

    def wait(self, timeout_s):
        if self._coming:
            self.unborn -= 1
            return [(self._coming.pop(), Died("stillborn") if self.unborn >= 0 else Up("here"))]
        for worker, tasks in list(self._busy.items()):
            if (event := self._answer(tasks)) is not None:
                del self._busy[worker]
                return [(worker, event)]
        return []

    def _answer(self, tasks):
        """Of the whole bundle, as `EngineWorker.run_bundle` gives it."""
        reports = []
        for name in [task.planned.fingerprint for task in tasks]:
            script = self.answers.get(name, [])
            answer = script.pop(0) if script else Report("ok")
            if answer is None:
                script.insert(0, None)
            if not isinstance(answer, Report):
                return answer
            reports.append(answer._replace(wall_s=self.wall_s))
            if answer.recycle or answer.fatal:
                break
        return reports


def run(pool, shared=(), exclusive=(), workers=2, timeout_s=5.0):
    kept, done = [], []

    def keep(task, status, reason, name, phase):
        kept.append((task.planned.fingerprint, status, name))
        return status

    schedule = Schedule(
        pool,
        workers,
        timeout_s,
        keep=keep,
        done=lambda task, report: done.append((task.planned.fingerprint, report.status)),
        stored=lambda tasks: ["ok" if task.planned.fingerprint in pool.stored else "" for task in tasks],
    )
    schedule.run([a_task(name) for name in shared], [a_task(name) for name in exclusive], seed=1)
    return kept, done


def test_every_cell_runs_once_and_exclusive_cells_run_alone_and_last():
    pool = ScriptedPool()
    kept, done = run(pool, shared="abcd", exclusive="xyz")
    assert sorted(done) == [(name, "ok") for name in "abcdxyz"] and kept == []
    assert {name for name, _ in pool.ran[4:]} == set("xyz")
    assert all(together == 1 for name, together in pool.ran[4:])
    assert pool.started == [0, 1] and pool.stopped == [1], "the second worker must be gone before cells are timed"


def test_the_order_is_shuffled_and_the_same_for_one_seed():
    names = [f"c{index}" for index in range(30)]
    first, second = ScriptedPool(), ScriptedPool()
    run(first, exclusive=names)
    run(second, exclusive=names)
    assert first.ran == second.ran and [name for name, _ in first.ran] != names


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_cells_of_one_setting_of_the_engine_run_in_a_row_both_shuffled(kind):
    names = [f"{engine}:c{index}" for index in range(20) for engine in ("small", "large", "huge")]
    pool = ScriptedPool()
    run(pool, **{kind: names}, workers=1)
    ran = [name for name, _ in pool.ran]
    assert sorted(ran) == sorted(names) and ran != sorted(ran)
    engines = [name.partition(":")[0] for name in ran]
    assert len(list(itertools.groupby(engines))) == 3, "each is loaded once"
    assert ran[:20] != [name for name in names if name.startswith(engines[0])], "in the order of the campaign"


def test_a_cell_whose_worker_dies_is_tried_once_more_and_then_an_error():
    pool = ScriptedPool(a=[Died("killed")], b=[Died("killed"), Died("killed")], c=[Died("x"), Died("x", is_oom=True)])
    kept, done = run(pool, shared="abcd")
    assert sorted(kept) == [("b", "error", "WorkerDied"), ("c", "oom", "WorkerOutOfMemory")]
    assert sorted(done) == [("a", "ok"), ("b", "error"), ("c", "oom"), ("d", "ok")]


def test_a_late_cell_is_ended_becomes_a_timeout_and_its_worker_is_replaced():
    pool = ScriptedPool(a=[None])
    kept, done = run(pool, shared="ab", workers=1, timeout_s=0.05)
    assert kept == [("a", "timeout", "Timeout")]
    assert sorted(done) == [("a", "timeout"), ("b", "ok")] and pool.started == [0, 0]


def test_a_row_that_a_late_worker_had_just_stored_is_counted_as_what_it_is():
    done = []
    stored = lambda task, *reasons: "ok"  # noqa: E731
    schedule = Schedule(ScriptedPool(a=[None]), 1, 0.05, stored, lambda task, report: done.append(report.status))
    schedule.run([a_task("a")], [], seed=1)
    assert done == ["ok"]


def test_a_worker_is_replaced_after_an_error_but_not_for_nothing():
    pool = ScriptedPool(a=[Report("error", recycle="after error")], b=[Report("error", recycle="after error")])
    run(pool, shared="ab", workers=1)
    assert pool.started == [0, 0], "after the last cell no new worker is needed"


def test_when_the_model_cannot_be_loaded_the_other_cells_do_not_try():
    failed = Report("error", "no such folder", "load", "OSError", recycle="after error")
    pool = ScriptedPool(**{f"c{index}": [failed] for index in range(10)})
    kept, done = run(pool, shared=[f"c{index}" for index in range(10)], workers=1)
    assert len(pool.ran) == LOAD_FAILURES and len(done) == 10
    assert {(status, name) for _, status, name in kept} == {("error", "OSError")}


def test_a_setting_that_cannot_be_loaded_takes_no_other_with_it():
    failed = Report("error", "no room", "load", "ValueError", recycle="after error")
    names = [f"{engine}:c{index}" for index in range(6) for engine in ("small", "large", "huge")]
    pool = ScriptedPool(**{name: [failed] for name in names if name.startswith("large")})
    kept, done = run(pool, shared=names, workers=1)
    tried = [name for name, _ in pool.ran if name.startswith("large")]
    assert len(tried) == LOAD_FAILURES and len(kept) == 6 - LOAD_FAILURES
    assert sorted(done) == sorted((name, "error" if name.startswith("large") else "ok") for name in names)


SETTINGS = ("small", "large", "huge")


def settings_of_which_one(name, ends):
    """Six cells of each of three settings, and a pool in which those of one end their workers."""
    names = [f"{engine}:c{index}" for index in range(6) for engine in SETTINGS]
    return names, ScriptedPool(**{cell: [ends] * 2 for cell in names if cell.startswith(name)})


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_a_setting_that_no_worker_survives_lets_the_others_finish(name, kind):
    names, pool = settings_of_which_one(name, Died("segmentation fault"))
    with pytest.raises(Unavailable, match="8 workers died"):
        run(pool, **{kind: names}, workers=1)
    assert {cell for cell, _ in pool.ran if not cell.startswith(name)} == {
        cell for cell in names if not cell.startswith(name)
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_hangs_lets_the_others_go_first(name):
    names, pool = settings_of_which_one(name, None)
    kept, done = run(pool, exclusive=names, timeout_s=0.0001)
    assert {cell for cell, _ in done[-5:]} < {cell for cell, *_ in kept} and len(kept) == 6, "all but the first"


def test_what_no_cell_is_to_blame_for_stops_the_shard():
    with pytest.raises(Unavailable, match="disk is full"):
        run(ScriptedPool(a=[Report("ok", fatal="the disk is full")]), shared="ab")
    with pytest.raises(Unavailable, match="workers died one after another"):
        run(ScriptedPool(**{name: [Died("x"), Died("x")] for name in "abcdef"}), shared="abcdef", workers=1)


def test_a_worker_that_failed_on_the_last_shared_cell_does_not_time_the_first_exclusive_one():
    pool = ScriptedPool(a=[Report("oom", recycle="after oom")])
    run(pool, shared="a", exclusive="x", workers=1)
    assert pool.started == [0, 0]


def test_cells_too_large_for_the_machine_do_not_stop_the_shard():
    pool = ScriptedPool(**{name: [Died("x", is_oom=True), Died("x", is_oom=True)] for name in "abcdef"})
    kept, done = run(pool, shared="abcdefg", workers=1)
    assert {status for _, status, _ in kept} == {"oom"} and ("g", "ok") in done


def test_a_worker_that_waits_for_a_device_holds_up_nobody_and_is_given_no_cell():
    pool = ScriptedPool()
    pool.never_up = {0}
    kept, done = run(pool, shared="abcd", exclusive="x", timeout_s=0.0001)
    assert sorted(done) == [(name, "ok") for name in "abcdx"] and kept == []
    assert pool.started == [0, 1] and pool.stopped == [0], "the one that is up must time the exclusive cells"


def test_a_worker_that_is_to_be_replaced_makes_way_for_one_that_waits_for_its_device():
    class OneDevice(ScriptedPool):
        never_up = frozenset({1})

        def stop(self, worker):
            super().stop(worker)
            if worker == 0 and self.never_up:
                self.never_up = frozenset()
                self._coming.append(1)

    error = Report("error", phase="run", recycle="after error")
    pool = OneDevice(a=[error], b=[error])
    _, done = run(pool, shared="ab")
    assert sorted(done) == [("a", "error"), ("b", "error")] and pool.stopped[0] == 0


def test_waiting_for_a_worker_does_not_count_against_a_cell_and_workers_that_never_live_stop_the_shard():
    pool = ScriptedPool()
    pool.unborn = scheduling.MAX_DEATHS_IN_A_ROW - 1
    assert run(pool, shared="a", workers=1) == ([], [("a", "ok")])
    pool = ScriptedPool()
    pool.unborn = 99
    with pytest.raises(Unavailable, match="workers died one after another; the last one said: stillborn"):
        run(pool, shared="a", workers=1)


def test_cells_of_a_lost_node_run_again_elsewhere_at_no_cost_but_not_for_ever():
    lost = [Died("its node has died", is_lost=True)]
    pool = ScriptedPool(a=lost * 3, b=lost * scheduling.MAX_LOSSES)
    kept, done = run(pool, shared="abc")
    assert sorted(done) == [("a", "ok"), ("b", "ok"), ("c", "ok")] and kept == []
    kept, _ = run(ScriptedPool(a=lost * 99), shared="a")
    assert kept == [("a", "error", "WorkerDied")]


NAMES = [f"c{index}" for index in range(60)]


def quick_pool(**answers):
    pool = ScriptedPool(**answers)
    pool.wall_s = 0.001
    return pool


def test_quick_cells_are_handed_out_together_slow_ones_and_timed_ones_one_by_one():
    pool = quick_pool()
    _, done = run(pool, shared=NAMES, exclusive="xyz")
    assert sorted(done) == sorted((name, "ok") for name in [*NAMES, *"xyz"])
    sizes = [len(bundle) for bundle in pool.bundles]
    assert sizes[:2] == [1, 1] and max(sizes) == (len(NAMES) - 2) // 2 < MAX_BUNDLE, "nobody knows yet; half for each"
    assert sizes[-3:] == [1, 1, 1], "the timed ones"
    for wall_s, most in ((1.0, 1), (2 * QUICK_S, 1), (BUNDLE_S / 20.5, 20)):
        pool = ScriptedPool()
        pool.wall_s = wall_s
        run(pool, shared=NAMES)
        assert max(len(bundle) for bundle in pool.bundles) == most


def test_a_bundle_that_was_stored_just_before_its_worker_died_counts():
    pool = quick_pool(c7=[Died("x")])
    pool.stored.update(NAMES)
    kept, done = run(pool, shared=NAMES, workers=1)
    assert kept == [] and sorted(done) == sorted((name, "ok") for name in NAMES)
    assert [name for name, _ in pool.ran].count("c7") == 1


def test_of_a_bundle_that_kills_its_worker_each_cell_runs_again_alone():
    pool = quick_pool(c7=[Died("x")] * 3)
    kept, done = run(pool, shared=NAMES, workers=1)
    assert kept == [("c7", "error", "WorkerDied")], "once in company, which proves nothing, and twice alone"
    assert sorted(done) == sorted((name, "error" if name == "c7" else "ok") for name in NAMES)
    fatal = next(bundle for bundle in pool.bundles if len(bundle) > 1 and "c7" in bundle)
    assert len(fatal) > 2 and all([name] in pool.bundles for name in fatal), "none of them had its row stored"


def test_a_row_that_a_lost_worker_had_stored_counts():
    pool = ScriptedPool(c7=[Died("x")])
    pool.stored.add("c7")
    kept, done = run(pool, shared=NAMES, workers=1)
    assert kept == [] and sorted(done) == sorted((name, "ok") for name in NAMES)
    assert [name for name, _ in pool.ran].count("c7") == 1


def test_of_a_bundle_that_hangs_only_the_cell_that_hangs_is_a_timeout():
    pool = quick_pool(c7=[None])
    kept, done = run(pool, shared=NAMES, workers=1, timeout_s=0.02)
    assert kept == [("c7", "timeout", "Timeout")]
    assert sorted(done) == sorted((name, "timeout" if name == "c7" else "ok") for name in NAMES)


def test_cells_that_a_worker_did_not_get_to_run_later_and_none_after_giving_up():
    pool = quick_pool(c7=[Report("oom", recycle="after oom")])
    _, done = run(pool, shared=NAMES, workers=1)
    assert sorted(done) == sorted((name, "oom" if name == "c7" else "ok") for name in NAMES)
    failed = Report("error", "no such folder", "load", "OSError", recycle="after error")
    pool = quick_pool(**{name: [failed] for name in NAMES})
    kept, done = run(pool, shared=NAMES, workers=1)
    assert len(done) == len(NAMES) and len(kept) == len(NAMES) - LOAD_FAILURES
