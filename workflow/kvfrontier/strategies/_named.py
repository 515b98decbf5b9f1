"""A strategy as the value of a parameter: `h2o`, or `{name: h2o, sinks: 4}`, which is held as the text `h2o(sinks=4)`.

Lists are written in brackets, and a parameter may be a strategy again: `anchors(policy=h2o(sinks=4), protect=[sinks])`.
Text, because a cell's parameters are plain values: they are hashed, stored in rows and shown in charts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError, WithJsonSchema

from kvfrontier.errors import KVFrontierError
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies.base import Strategy

_FORM = re.compile(r"(\w+)\s*(?:\((.*)\))?")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}


@lru_cache(maxsize=1024)
def build(text: str, budget: float | None = None, **beside: str) -> Strategy:
    """The strategy that `text` names, with `budget` if there is one, and what else stands beside it.

    Raises ValueError for what is wrong.
    """
    name, params = _parse(text)
    return _make(name, params | beside | ({} if budget is None else {"budget": budget}))


def _read(value: object) -> str:
    """The text of a strategy that is given as text or as a mapping, without the parameters that are the defaults."""
    if isinstance(value, Mapping):
        params = dict(value)
        name = params.pop("name", None)
    elif isinstance(value, str):
        name, params = _parse(value)
    else:
        name, params = None, {}
    if not isinstance(name, str):
        raise ValueError("the name of a strategy, or a mapping `{name: ..., parameter: value}`")
    if params.get("budget") is not None:
        raise ValueError(f"the parameters of {name} without its budget, which stands beside it")
    made = _make(name, params)
    given = {item.name: (getattr(made, item.name), item.default) for item in fields(made)}
    inner = ", ".join(
        f"{key}={_write(value)}" for key, (value, default) in sorted(given.items()) if _differ(value, default)
    )
    return f"{name}({inner})" if inner else name


def _write(value: object) -> str:
    return f"[{', '.join(map(_write, value))}]" if isinstance(value, list | tuple) else str(value)


def _differ(value: object, default: object) -> bool:
    default = getattr(default, "default", default)  # of a pydantic Field
    return value != default or isinstance(value, bool) != isinstance(default, bool)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise ValueError(f"'{text}' is not the name of a strategy, nor `name(parameter=value, ...)`")
    pairs = [pair.partition("=") for pair in _split(form[2] or "") if pair.strip()]
    return form[1], {key.strip(): _scalar(value.strip()) for key, _, value in pairs}


def _split(text: str) -> list[str]:
    """At the commas that are inside no brackets: values may be lists, and strategies with parameters."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _scalar(text: str) -> bool | int | float | str | tuple | None:
    if text.startswith("[") and text.endswith("]"):
        return tuple(_scalar(part.strip()) for part in _split(text[1:-1]) if part.strip())
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _make(name: str, params: dict[str, Any]) -> Strategy:
    try:
        return STRATEGIES.get(name)(**params)
    except ValidationError as error:
        found = "; ".join(".".join(map(str, (name, *item["loc"]))) + f": {item['msg']}" for item in error.errors())
        raise ValueError(found) from error
    except KVFrontierError as error:
        raise ValueError(str(error)) from error


_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]}
Named = Annotated[str, BeforeValidator(_read), WithJsonSchema(_SCHEMA)]
NamedOrNone = Annotated[
    str | None,
    BeforeValidator(lambda value: None if value is None else _read(value)),
    WithJsonSchema({"anyOf": [*_SCHEMA["anyOf"], {"type": "null"}]}),
]
