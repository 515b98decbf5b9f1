"""Answers command lines of `kvfrontier` (see `copied.Fresh`), each in a fork that imports the package anew."""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

LIBRARIES = ("click.testing", "duckdb", "pyarrow.compute", "pyarrow.parquet", "pydantic", "yaml")


def _serve() -> None:
    for name in LIBRARIES:
        __import__(name)
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints must not get between the answers
    for line in sys.stdin:
        if pid := os.fork():
            os.waitpid(pid, 0)
            continue
        try:
            answer = {"printed": _answers(**json.loads(line))}
        except BaseException:  # noqa: BLE001 - the test that asked shows it
            answer = {"failed": traceback.format_exc()}
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()
        os._exit(0)


def _answers(root: str, environment: dict[str, str], commands: list[list[str]]) -> list[str]:
    assert not [name for name in sys.modules if name.partition(".")[0] == "kvfrontier"]
    os.environ.update(environment)
    sys.path.insert(0, root)
    runpy.run_path(str(Path(root) / "sitecustomize.py"))
    from click.testing import CliRunner
    from kvfrontier.cli import kvfrontier as program

    printed = []
    for command in commands:
        if command == ["run"]:
            _run()
            continue
        result = CliRunner().invoke(program, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        printed.append(result.stdout)
    return printed


def _run() -> None:
    """What `snakemake` has `kvfrontier measure` do, with workers in this process instead of Ray's."""
    from kvfrontier.cli.measure import command as measure
    from kvfrontier.run import measure as measuring
    from kvfrontier.run.session import open_campaign

    measuring.ray_pool = _inline_pool
    files = open_campaign("trial", is_main=True, is_dry=True)
    for shard, ledger in zip(files.index.shards, files.ledgers, strict=True):
        if not Path(ledger).exists():
            measure([files.campaign, shard.name], standalone_mode=False)


def _inline_pool(placement, project, campaign_dir, group):
    from kvfrontier.run.schedule import Up
    from kvfrontier.run.worker import EngineWorker

    class InlinePool:
        """One worker, here."""

        def __init__(self):
            self.placement = placement
            self._events = []
            self._worker = EngineWorker(project, campaign_dir, group)

        def start(self, worker):
            self._events.append((worker, Up("here")))

        def stop(self, worker):
            self._events = [event for event in self._events if event[0] != worker]

        def submit(self, worker, tasks, concurrent_cells):
            self._events.append((worker, self._worker.run_bundle(tasks, concurrent_cells)))

        def wait(self, timeout_s):
            events, self._events = self._events, []
            return events

    return nullcontext(InlinePool())


if __name__ == "__main__":
    _serve()
