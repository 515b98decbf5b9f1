"""What a hostile or hurried user writes, and the check that words answer it: no traceback, no file out of place."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from kvfrontier.errors import ConfigError, KVFrontierError

CANARY = Path("/tmp/kvfrontier-canary-of-tests")
"""A file that every smuggled command would make."""

MOST_S = 2.0
"""No refusal may take longer (processor time, so that a busy machine fails nobody)."""

SHELL = f"touch {CANARY}"
NAMES = [
    "",
    " ",
    ".",
    "..",
    "~",
    "~root",
    "~nobody-of-that-name",
    "../../x",
    "../x",
    "/tmp/x",
    "//",
    "a/b",
    "a\\b",
    "con",
    "nul.yaml",
    "-rf",
    "--help",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\0b",
    "a\x1b[31mb",
    "a\x9b31mb",
    "\ud800",
    "\u202eevil",
    "\u200b",
    "ﬁ",
    "İ",
    "e\u0301",
    "\U0001f600" * 60,
    "x" * 300,
    "x" * 70_000,
    f"$({SHELL})",
    f"`{SHELL}`",
    f"; {SHELL} #",
    f"' ; {SHELL} ; '",
    f'" ; {SHELL} ; "',
    "{wildcard}",
    "{{",
    "}",
    "{shard}",
    "%s%n",
    "%2e%2e%2f",
    "*",
    "[",
    "?",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "'; DROP TABLE cells; --",
    "null",
    "true",
    "1e9",
    "__class__",
    "model",
]
NUMBERS = [
    0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**63, 10**25, 10**400, 0.5, -0.0, 1.5, 1e300, 5e-324,
    float("nan"), float("inf"), float("-inf"), True, False, None,
]  # fmt: skip
CONTAINERS = [
    [], {}, [[]], [{}], {"name": {}}, {"name": []}, {"name": "full", "name2": 1}, [None], [True, False], {"": ""},
    {"a": {"b": {"c": {"d": [1, [2, [3]]]}}}}, ["full"] * 3, list(range(50)), [0.1, "0.1", True, None, [], {}],
]  # fmt: skip

FUZZ = settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=list(HealthCheck),
    derandomize=bool(os.environ.get("CI")),
)

names = st.sampled_from(NAMES) | st.text(max_size=20)
values = st.sampled_from(NAMES) | st.sampled_from(NUMBERS) | st.sampled_from(CONTAINERS).map(copy.deepcopy)
edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "set", "add", "rename", "delete", "wrap", "repeat"]),
        st.integers(0, 500),
        values,
        names,
    ),
    min_size=1,
    max_size=3,
)


def edited(document: Any, changes: list[tuple]) -> Any:
    """`document` with each (kind, place, value, name) done to it, wherever `place` falls."""
    document = copy.deepcopy(document)
    for kind, place, value, name in changes:
        places = list(_places(document))
        if not places:
            return value
        holder, key = places[place % len(places)]
        if kind == "set":
            holder[key] = value
        elif kind == "delete":
            del holder[key]
        elif kind == "wrap":
            holder[key] = [holder[key]]
        elif kind == "repeat":
            holder[key] = [holder[key]] * 4
        elif isinstance(holder, list):
            holder.insert(key, value)
        elif kind == "rename":
            holder[name] = holder.pop(key)
        else:
            holder[name] = value
    return document


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    for key, value in items:
        yield node, key
        yield from _places(value)


@contextmanager
def refused_in_words(*allowed: type[Exception]) -> Iterator[None]:
    """The block succeeds, or fails in words of the house; soon, and without raw control characters."""
    before_s = time.process_time()
    try:
        yield
    except KVFrontierError as error:
        text = str(error)
        assert text.strip()
        assert text.replace("\n", "").isprintable(), ascii(text)
        text.encode()
        if isinstance(error, ConfigError):
            assert error.problems
            assert all(problem.file and problem.key and problem.expected for problem in error.problems)
            assert all(len(str(problem)) < 3000 for problem in error.problems), max(map(len, map(str, error.problems)))
    except allowed:
        pass
    assert time.process_time() - before_s < MOST_S
    assert not CANARY.exists(), "a command was run"


def files_below(folder: Path) -> dict[Path, bytes]:
    """Every file and link below a folder with its content."""
    return {
        path: os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }
