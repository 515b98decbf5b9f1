"""One YAML document of the configuration: read strictly, and able to say where each key stands.

YAML 1.2 scalars (`on`, `off`, `yes`, `no` are text; `3e12` is a number); a key given twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from kvfrontier.errors import ConfigError, Problem
from kvfrontier.plan.strict_yaml import StrictLoader, nesting

MOST_BYTES = 2**20
"""No configuration is larger; reading so much may take ten seconds."""

DEEPEST = 100
"""Brackets within brackets at most."""

NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but tab and line breaks, and half characters: no name or path holds them."""


@dataclass(frozen=True)
class Document:
    """A parsed YAML mapping. `file` is how messages name it; `lines` maps a dotted key to its line."""

    file: str
    data: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    def problem(self, key: str, got: Any, expected: str, hint: str = "") -> Problem:
        """A Problem at `key` (`axes.strategy[2].budget`); `got` is a value of the file, shown as YAML would have it."""
        return Problem(self.place(key), key, show(got), expected, hint)

    def place(self, key: str) -> str:
        """`config/campaigns/x.yaml:12`: the file and the line of `key` or of the nearest key around it."""
        while key and key not in self.lines:
            key = re.sub(r"(\.[^.\[\]]*|\[\d+\]|^[^.\[\]]+|.)$", "", key, flags=re.DOTALL)
        return f"{self.file}:{self.lines[key]}" if key in self.lines else self.file


class Text(str):
    """A description of what was found, shown as it is and not as a quoted value."""


NOTHING = Text("nothing")
LONGEST_SHOWN = 100
YAML_WORDS = {
    "True": "true",
    "False": "false",
    "None": "null (nothing)",
    "nan": ".nan",
    "inf": ".inf",
    "-inf": "-.inf",
}


def show(value: Any) -> str:
    """A value of a YAML file in one short line: text in quotes, `true`, `.nan`, `{a: 1}`."""
    if isinstance(value, Text):
        return str(value)
    text = ""
    for piece in _pieces(value):  # no further than is shown: aliases can make a short file hold a billion values
        text += piece
        if len(text) > LONGEST_SHOWN:
            return f"{text[: LONGEST_SHOWN - 3]}..."
    return text


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield f"{', ' if number else ''}{key}: "
            yield from _pieces(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item)
        yield "]"
    elif isinstance(value, str):
        yield repr(value)
    else:
        yield YAML_WORDS.get(str(value), str(value))


def read_document(path: Path, file: str) -> Document:
    """Read one YAML mapping; raises ConfigError for what cannot be read, is no mapping, or gives a key twice."""
    return _parse(_read_text(path, file), file)


@lru_cache(maxsize=16)
def _parse(text: str, file: str) -> Document:
    loader = None
    try:
        if nesting(text) > DEEPEST:
            raise RecursionError
        loader = StrictLoader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            found = "an empty file" if root is None else f"a {root.id} at the top"
            raise ConfigError([Problem(file, "(file)", found, "a mapping `key: value`")])
        lines: dict[str, int] = {}
        problems = _walk(file, root, "", lines, set(), ())
        if problems:
            raise ConfigError(problems)
        return Document(file, loader.construct_document(root), lines)
    except RecursionError:
        raise ConfigError([Problem(file, "(syntax)", "lists or mappings nested too deeply", "valid YAML")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        found = ", ".join(part for part in (error.context, error.problem) if part) or str(error)
        hint = "Indent with spaces, not tabs." if "'\\t'" in found else ""
        where = f"{file}:{mark.line + 1}" if mark else file
        raise ConfigError([Problem(where, "(syntax)", f"unreadable text ({found})", "valid YAML", hint)]) from error
    except ReaderError as error:
        where = _place_of(text, error.position, file)
        raise ConfigError([Problem(where, "(syntax)", f"control character {error.character:#x}", "text")]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([Problem(file, "(syntax)", str(error).splitlines()[0], "valid YAML")]) from error
    finally:
        if loader:
            loader.dispose()


def _read_text(path: Path, file: str) -> str:
    expected = "a readable YAML file in UTF-8"
    try:
        if (size_bytes := path.stat().st_size) > MOST_BYTES:
            raise ConfigError([Problem(file, "(file)", f"{size_bytes:,} bytes", f"at most {MOST_BYTES:,}")])
        if path.exists() and not path.is_file():
            raise ConfigError([Problem(file, "(file)", "a folder, a pipe or a device", expected)])
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([Problem(file, "(file)", "no such file", expected, f"Looked at {path}.")]) from None
    except UnicodeDecodeError as error:
        where = _place_of(error.object, error.start, file)
        raise ConfigError([Problem(where, "(file)", f"byte {error.object[error.start]:#x}", expected)]) from error
    except OSError as error:
        raise ConfigError([Problem(file, "(file)", error.strerror or str(error), expected)]) from error


def _place_of(content: str | bytes, position: int, file: str) -> str:
    """`file:line` of a position in its content."""
    newline = "\n" if isinstance(content, str) else b"\n"
    return f"{file}:{content.count(newline, 0, position) + 1}"


def join_key(parent: str, key: Hashable) -> str:
    """`axes` + `strategy.budget` -> `axes.strategy.budget`; `axes.strategy` + 2 -> `axes.strategy[2]`."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"{parent}[{key}]"
    return f"{parent}.{key}" if parent else str(key)


def _walk(
    file: str, node: yaml.Node, path: str, lines: dict[str, int], seen: set[int], above: tuple[int, ...]
) -> list[Problem]:
    """Record the line of every key below `node`; return keys that are given twice and aliases that hold themselves."""
    if id(node) in above:
        return [Problem(f"{file}:{node.start_mark.line + 1}", path, "an alias inside itself", "a finite document")]
    if isinstance(node, yaml.ScalarNode) and (odd := NOT_TEXT.search(node.value)):
        place = f"{file}:{node.start_mark.line + 1}"
        return [Problem(place, path, f"the control character {ord(odd[0]):#x} in a value", "text without such")]
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return []
    seen.add(id(node))
    above = (*above, id(node))
    problems: list[Problem] = []
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines.setdefault(f"{path}[{index}]", item.start_mark.line + 1)
            problems += _walk(file, item, f"{path}[{index}]", lines, seen, above)
        return problems
    for key_node, item in node.value:
        line = key_node.start_mark.line + 1
        if not _is_text(key_node):
            got = Text(
                f"the key {key_node.value!r}" if isinstance(key_node, yaml.ScalarNode) else "a list or mapping as a key"
            )
            problems.append(
                Problem(f"{file}:{line}", path or "(file)", got, "text (put it in quotes if it looks like a number)")
            )
            continue
        key = join_key(path, key_node.value)
        if key in lines and key_node.tag != "tag:yaml.org,2002:merge":
            got = f"this key a second time (first on line {lines[key]})"
            problems.append(Problem(f"{file}:{line}", key, got, "each key once"))
        lines.setdefault(key, line)
        problems += _walk(file, item, key, lines, seen, above)
    return problems


def _is_text(node: yaml.Node) -> bool:
    """Whether a key is one line of text, not empty (or `<<`), and no number, date, list or escape sequence."""
    if not isinstance(node, yaml.ScalarNode) or not node.value or not node.value.isprintable():
        return False
    return node.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
