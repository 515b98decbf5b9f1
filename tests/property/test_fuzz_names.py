"""Names and words of the command line: decoded as they were encoded, and never a way out of the results folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hostile import CANARY, FUZZ, NAMES, SHELL, files_below
from hypothesis import given
from hypothesis import strategies as st
from kvfrontier.cli import kvfrontier
from kvfrontier.errors import KVFrontierError
from kvfrontier.plan.believed import is_shard_name
from kvfrontier.plan.disk import prepare
from kvfrontier.plan.names import decode_name, encode_name, receipt_name
from kvfrontier.plan.project import Project, is_name
from kvfrontier.store.ledger import ledger_file, shard_lock
from toy_project import CAMPAIGN, ToyProject, planned_cells, store, toy_plugins
from workspace import Workspace

text = st.sampled_from([name for name in NAMES if name and "\ud800" not in name]) | st.text(min_size=1, max_size=60)
shards = st.from_regex(r"[A-Za-z0-9%._~-]{1,230}", fullmatch=True) | text


@FUZZ
@given(text, text)
def test_receipts_are_distinct_files_of_their_folder(one, other):
    names = [receipt_name(name) for name in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    for name, receipt in zip((one, other), names, strict=True):
        assert decode_name(encode_name(name)) == name
        assert Path("/x", receipt).resolve().parent == Path("/x") and len(receipt.encode()) <= 190
        assert re.fullmatch(r"[A-Za-z0-9%_~][A-Za-z0-9%_.~-]*\.json", receipt)


@FUZZ
@given(shards)
def test_what_may_be_called_a_shard_stays_in_its_folder(name):
    if is_shard_name(name):
        for path in (ledger_file(Path("/x"), name), shard_lock(Path("/x"), name)):
            assert path.resolve().parent == Path("/x/ledgers") and len(path.name.encode()) <= 240


@FUZZ
@given(text)
def test_what_may_be_called_a_campaign_stays_in_its_folder(name):
    if is_name(name):
        assert Path("/x", name, "y").resolve().parent == Path("/x") / name


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """A campaign of three stored cells, in a folder inside another one that must stay as it is."""
    root = tmp_path_factory.mktemp("outer") / "project"
    with toy_plugins(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVFRONTIER_ROOT", str(root))
        patch.setenv("KVFRONTIER_CACHE", str(root / "cache"))
        patch.delenv("KVFRONTIER_RESULTS", raising=False)
        patch.chdir(root.parent)
        toys = ToyProject(root)
        toys.campaign_text(CAMPAIGN)
        index = prepare(Project.find(), "trial")
        for cell in planned_cells(index):
            store(index, cell)
        (root.parent / "victim" / "plan").mkdir(parents=True)
        for file in (index.campaign_dir / "plan").iterdir():
            (root.parent / "victim" / "plan" / file.name).write_bytes(file.read_bytes())
        yield toys


WORDS = [
    "../../victim", "../victim", "victim", "trial/../../../victim", "", "..", "/tmp/x", "~nobody-of-that-name", "-rf",
    "a\nb", "a\x1b[31mb", "\u202eevil", "x" * 300, f"$({SHELL})", f"' ; {SHELL} ; '", "{shard}", "*", "%s%n",
]  # fmt: skip
CALLS = [
    ("plan", "{}"), ("explain", "{}"), ("explain", "trial", "--cell", "{}"), ("check", "{}"), ("store", "{}"),
    ("frontier", "{}"), ("report", "{}"), ("query", "{}", "SELECT 1"), ("query", "trial", "{}"), ("fold", "{}"),
    ("fold", "trial", "{}"), ("measure", "{}", "x"), ("measure", "trial", "{}"), ("fetch", "model", "{}"),
    ("fetch", "data", "{}"), ("log", "{}"), ("log", "{}", "trial"), ("compare", "{}", "trial"), ("prune", "{}"),
    ("rerun", "{}"), ("schema", "{}"), ("{}",),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_no_word_makes_a_command_stumble_or_write_elsewhere(toys, call):
    before = files_below(toys.root.parent)
    for word in WORDS:
        arguments = [part.replace("{}", word) for part in call]
        result = CliRunner().invoke(kvfrontier, arguments)
        if result.exception and not isinstance(result.exception, SystemExit | KVFrontierError):
            raise AssertionError(f"{arguments}: {result.exception!r}") from result.exception
        assert (
            not isinstance(result.exception, KVFrontierError) or str(result.exception).replace("\n", "").isprintable()
        )
    changed = {path for path, data in files_below(toys.root.parent).items() if before.get(path) != data}
    allowed = (toys.root / "results" / "trial", toys.root / "cache")
    assert all(any(path.is_relative_to(folder) for folder in allowed) for path in changed), changed
    assert not CANARY.exists()


@pytest.mark.parametrize(
    "words", [["plan", b"\xff"], ["plan", f"$({SHELL})"], ["query", "x\ny"], ["plan", "../x.yaml"]]
)
def test_the_real_command_answers_in_a_line(tmp_path, words):
    ToyProject(tmp_path)
    call = [Path(sys.executable).parent / "kvfrontier", *words]
    done = subprocess.run(call, env={**os.environ, "KVFRONTIER_ROOT": str(tmp_path)}, capture_output=True)
    assert done.returncode == 2 and done.stderr.startswith(b"kvfrontier: ") and b"Traceback" not in done.stderr


TARGETS = ["results/trial/ledgers/../../../y.json", "results/trial/inputs/model/../../../../y", "results/../../x"]


@pytest.mark.workflow
def test_targets_that_nobody_makes_are_refused_and_leave_nothing(tmp_path):
    space = Workspace(tmp_path / "project")
    space.campaign({"workload": [{"name": "speed", "text": "generated", "context_tokens": 8, "output_tokens": 2}]})
    done = space.snakemake("-n")
    assert done.returncode == 0, done.stdout
    before = set(files_below(tmp_path))
    for target in TARGETS:
        done = space.snakemake("-n", target)
        assert done.returncode != 0 and "Traceback (most" not in done.stdout, done.stdout
        assert re.search("No rule to produce|no shard|no receipt|MissingRule|MissingInput", done.stdout), done.stdout
    left = {path for path in set(files_below(tmp_path)) - before if ".snakemake" not in path.parts}
    assert not left


@pytest.mark.workflow
@pytest.mark.parametrize("campaign", [f"!!python/object/apply:os.system ['{SHELL}']", f"$({SHELL}){{wildcard}}\x1b[2J"])
def test_campaigns_that_are_none_end_snakemake_in_words(tmp_path, campaign):
    space = Workspace(tmp_path / "project")
    space.campaign({"workload": ["speed"]})
    done = space.run(*space.command("-n")[:-1], f"campaign={campaign}")
    assert done.returncode != 0 and "expected" in done.stdout and "Traceback (most" not in done.stdout, done.stdout
    assert "\x1b[2J" not in done.stdout and not CANARY.exists()
