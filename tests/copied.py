"""A project whose processes import their own copy of the package, which a test may edit."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import kvfrontier
from workspace import Workspace

SERVER = Path(__file__).with_name("fresh.py")


class Copied(Workspace):
    """A workspace with a copy of kvfrontier; the root comes first on the search path of what it starts."""

    def __init__(self, root: Path):
        super().__init__(root)
        if not self.package.exists():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(kvfrontier.__file__).parent, self.package, ignore=ignored)

    @property
    def package(self) -> Path:
        return self.root / "kvfrontier"

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace text in a file of the copy."""
        text = (self.package / file).read_text()
        assert old in text, f"{file} has no {old!r}"
        (self.package / file).write_text(text.replace(old, new))

    def sources(self) -> list[Path]:
        """Every Python file of the copy."""
        return sorted(self.package.rglob("*.py"))

    def comment_everything(self) -> None:
        """A comment at the head and the end of every file of the package, and other words in every docstring."""
        for path in self.sources():
            text = path.read_text()
            lines = text.splitlines(keepends=True)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                    spot = node.body[0].value
                    rest = [""] * (spot.end_lineno - spot.lineno)
                    words = f'{" " * spot.col_offset}"""Other words."""\n'
                    lines[spot.lineno - 1 : spot.end_lineno] = [words, *rest]
            path.write_text("# A comment.\n" + "".join(lines) + "\n# Another.\n")

    def format_everything(self) -> None:
        """The whole package with lines half as long."""
        before = {path: path.read_bytes() for path in self.sources()}
        command = ["ruff", "format", "--isolated", "--line-length", "60", str(self.package)]
        subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
        changed = [path for path, content in before.items() if path.read_bytes() != content]
        assert len(changed) > len(before) / 2

    def touch_everything(self) -> None:
        """What a fresh git checkout does to the times of files."""
        for path in self.root.rglob("*"):
            if path.is_file() and self.results not in path.parents:
                os.utime(path)


class Fresh:
    """Runs commands of a copied package, each in a process of its own: nothing of the package is remembered between.

    The processes are forked from one that has loaded the libraries (tests/fresh.py), and so start in milliseconds.
    """

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Fresh:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stdin.close()
        self._server.wait(timeout=30)

    def call(self, space: Copied, *commands: Iterable[str]) -> list[str]:
        """What each command line of `kvfrontier` prints; `["run"]`: measure, as Snakemake would, what has no ledger."""
        request = {"root": str(space.root), "environment": space.environment, "commands": [list(c) for c in commands]}
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        assert "failed" not in answer, answer["failed"]
        return answer["printed"]
