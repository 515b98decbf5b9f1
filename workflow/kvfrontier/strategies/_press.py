"""A press of kvpress as the value of a parameter: a name, or a mapping with parameters, among which may be presses.

Held as text in Python's form, `AdaKVPress(press=SnapKVPress(window_size=64))`: a cell's parameters are plain values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from kvfrontier.errors import did_you_mean
from kvfrontier.strategies._press_catalog import presses

RATIO = "compression_ratio"
_FOR_PRESSES = re.compile(r"(^|_)press(es)?$")
"""Names of parameters whose values are presses."""
_EXPECTED = "the name of a press of kvpress, or a mapping `{name: ..., parameter: value}`"


@dataclass(frozen=True)
class Press:
    """A press that is not made yet: its class's name, and parameters in which others may be."""

    name: str
    parameters: Mapping[str, Any]

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={_shown(value)}" for key, value in sorted(self.parameters.items()))
        return f"{self.name}({inner})" if inner else self.name

    @property
    def inside(self) -> list[Press]:
        """The presses among its parameters."""
        lists = (value if isinstance(value, list) else [value] for value in self.parameters.values())
        return [value for values in lists for value in values if isinstance(value, Press)]

    @property
    def has_ratio(self) -> bool:
        """Whether it, or one inside, says how much goes."""
        return RATIO in self.parameters or any(press.has_ratio for press in self.inside)

    def make(self, module: Any) -> Any:
        """The press itself, from the module kvpress."""
        return getattr(module, self.name)(**{key: _made(value, module) for key, value in self.parameters.items()})


def parse(text: str) -> Press:
    """The press that a text names; raises ValueError for what is none."""
    try:
        found = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, Press):
        raise ValueError(f"{_EXPECTED}; '{text}' is neither")
    return found


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return Press(node.id, {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        return Press(node.func.id, {str(item.arg): _value(item.value) for item in node.keywords})
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    return ast.literal_eval(node)


def _read(value: object) -> str:
    """The text of a press that is given as text or as a mapping, checked against kvpress where that is installed."""
    press = _given(value, is_press=True)
    if not isinstance(press, Press):
        raise ValueError(_EXPECTED)
    if known := presses():
        _check(press, known)
    return str(press)


def _given(value: object, is_press: bool) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        inside = {str(key): item for key, item in value.items() if key != "name"}
        return Press(value["name"], {key: _given(item, bool(_FOR_PRESSES.search(key))) for key, item in inside.items()})
    if isinstance(value, str) and is_press:
        return parse(value)
    if isinstance(value, list | tuple):
        return [_given(item, is_press) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(_EXPECTED)


def _check(press: Press, known: Mapping[str, Any]) -> None:
    if press.name not in known:
        raise ValueError(f"a press of kvpress; there is no '{press.name}'. {did_you_mean(press.name, known)}".strip())
    fields = known[press.name]["parameters"]
    for name in press.parameters:
        if name not in fields:
            expected = f"parameters of {press.name} ({', '.join(fields) or 'it has none'}), not '{name}'"
            raise ValueError(f"{expected}. {did_you_mean(name, fields)}".strip())
    missing = [name for name, is_required in fields.items() if is_required and name not in press.parameters]
    if missing:
        raise ValueError(f"{press.name} with {' and '.join(missing)}, without which it cannot be")
    for inner in press.inside:
        _check(inner, known)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value) if isinstance(value, Press) else repr(value)


def _made(value: Any, module: Any) -> Any:
    if isinstance(value, list):
        return [_made(item, module) for item in value]
    return value.make(module) if isinstance(value, Press) else value


_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]}
Named = Annotated[str, BeforeValidator(_read), WithJsonSchema(_SCHEMA)]
