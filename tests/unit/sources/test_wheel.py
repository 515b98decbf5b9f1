"""Fetching wheels: once, verified, atomic, and with advice when it cannot be done. pip is played by a function here."""

from __future__ import annotations

import hashlib
import subprocess
import time
from pathlib import Path

import pytest
from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.sources import wheel
from kvfrontier.sources.wheel import fetch_wheel, find_wheel

CONTENT = b"weights and texts"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REQUIREMENT = "Some-Data.Pack==1.2"
FILE = "some_data_pack-1.2-py3-none-any.whl"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pip(cache, monkeypatch):
    """Calls of pip; `pip.file` is what it brings (None: it fails with `pip.stderr`)."""

    class Pip:
        content: bytes | None = CONTENT
        stderr = ""

        def __init__(self):
            self.calls: list[list[str]] = []

        def run(self, command, **_):
            self.calls.append(command)
            if self.content is not None:
                folder = Path(command[command.index("--dest") + 1])
                (folder / FILE).write_bytes(self.content)
            return subprocess.CompletedProcess(command, 0 if self.content is not None else 1, "", self.stderr)

    pip = Pip()
    monkeypatch.setattr(wheel.subprocess, "run", pip.run)
    return pip


def test_a_wheel_is_fetched_once(pip, cache):
    path = fetch_wheel(REQUIREMENT, SHA256)
    assert path == cache / "wheels" / FILE
    assert path.read_bytes() == CONTENT
    assert fetch_wheel(REQUIREMENT, SHA256) == path
    assert len(pip.calls) == 1


def test_pip_resolves_no_dependencies_and_builds_nothing(pip):
    fetch_wheel(REQUIREMENT, SHA256)
    (command,) = pip.calls
    assert "--no-deps" in command and command[command.index("--only-binary") + 1] == ":all:"


def test_a_slow_download_says_how_much_has_arrived(pip, monkeypatch, caplog):
    def slowly(command, env, **_):
        (Path(env["TMPDIR"]) / "half").write_bytes(b"x" * 2048)
        time.sleep(0.2)
        return pip.run(command)

    monkeypatch.setattr(wheel.subprocess, "run", slowly)
    monkeypatch.setattr(wheel, "PROGRESS_INTERVAL_S", 0.02)
    with caplog.at_level("INFO"):
        fetch_wheel(REQUIREMENT, SHA256)
    assert "2.0 KiB so far" in caplog.text


def test_a_file_put_there_by_hand_is_taken(pip, cache):
    (cache / "wheels").mkdir(parents=True)
    (cache / "wheels" / FILE).write_bytes(CONTENT)
    fetch_wheel(REQUIREMENT, SHA256)
    assert pip.calls == []


def test_a_wrong_checksum_removes_the_file_and_says_so(pip, cache):
    with pytest.raises(KVFrontierError, match="not the expected file of Some-Data"):
        fetch_wheel(REQUIREMENT, "0" * 64)
    assert find_wheel(REQUIREMENT) is None
    assert list((cache / "wheels").iterdir()) == []


def test_a_damaged_file_in_the_cache_is_removed_and_the_next_run_fetches_it(pip, cache):
    (cache / "wheels").mkdir(parents=True)
    (cache / "wheels" / FILE).write_bytes(b"half")
    with pytest.raises(KVFrontierError, match="removed"):
        fetch_wheel(REQUIREMENT, SHA256)
    assert fetch_wheel(REQUIREMENT, SHA256).read_bytes() == CONTENT


def test_what_an_interrupted_run_left_is_cleared_away(pip, cache):
    leftover = cache / "wheels" / ".partial-some_data_pack-1.2-dead"
    leftover.mkdir(parents=True)
    fetch_wheel(REQUIREMENT, SHA256)
    assert [path.name for path in (cache / "wheels").iterdir()] == [FILE]


def test_no_network_says_what_to_do(pip, cache):
    pip.content, pip.stderr = None, "WARNING: Retrying\nERROR: No matching distribution found for Some-Data.Pack==1.2\n"
    with pytest.raises(Unavailable) as caught:
        fetch_wheel(REQUIREMENT, SHA256)
    message = str(caught.value)
    for part in ("ERROR: No matching distribution", "pip download --no-deps", str(cache / "wheels"), "text: generated"):
        assert part in message


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(Unavailable, match="KVFRONTIER_CACHE"):
        fetch_wheel(REQUIREMENT, SHA256)


def test_a_requirement_must_pin_its_version(pip):
    with pytest.raises(KVFrontierError, match="must pin a version"):
        fetch_wheel("some-data", SHA256)
