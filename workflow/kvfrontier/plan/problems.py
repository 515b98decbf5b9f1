"""pydantic's validation errors in the words of a config file: which key, what it holds, what it should hold."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from kvfrontier.errors import Problem, did_you_mean
from kvfrontier.plan.document import NOTHING, Document, join_key
from kvfrontier.plan.shape import PATTERNS_IN_WORDS

UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
MISSING = {"missing", "missing_argument", "missing_keyword_only_argument"}
BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number of {} or more"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number of {} or less"),
    "multiple_of": ("multiple_of", "a multiple of {}"),
}
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping `key: value`",
    "model": "a mapping `key: value`",
    "dataclass": "a mapping `key: value`",
}


def document_problems(document: Document, error: ValidationError, model: type, parent: str = "") -> list[Problem]:
    """Problems of a whole document (or of `parent` in it) against the pydantic model that describes it."""

    def known(path: tuple) -> Iterable[str]:
        return _fields_at(model, path)

    base = document.data
    for part in [part for part in parent.split(".") if part]:
        base = base[part]

    def key_of(loc: tuple, missing: bool) -> tuple[str, tuple]:
        node, key, path = base, parent, []
        for part in loc:
            if (isinstance(node, dict) and part in node) or (isinstance(node, list) and isinstance(part, int)):
                node, key, path = node[part], join_key(key, part), [*path, part]
            elif missing and part == loc[-1]:
                key, path = join_key(key, part), [*path, part]
        return key, tuple(path)

    return _unique(_translate(document, error, key_of, known))


def plugin_problems(
    document: Document, error: ValidationError, fields: Iterable[str], key_of: Callable[[str], str]
) -> list[Problem]:
    """Problems of one plugin's parameters; `key_of` names the key that gave a field its value ("" for the whole)."""
    names = tuple(fields)

    def locate(loc: tuple, missing: bool) -> tuple[str, tuple]:
        if not loc:
            return key_of(""), ()
        key = key_of(str(loc[0]))
        for part in loc[1:]:
            key = join_key(key, part) if isinstance(part, int) else key
        return key, loc[:1]

    return _unique(_translate(document, error, locate, lambda path: names))


def _translate(document: Document, error: ValidationError, key_of: Callable, known: Callable) -> Iterable[Problem]:
    for item in error.errors(include_url=False):
        kind = item["type"]
        key, path = key_of(item["loc"], kind in MISSING)
        if kind in UNKNOWN:
            names = sorted(known(path))
            unknown = str(item["loc"][-1])
            expected = f"one of {', '.join(names)}" if names else "no parameters"
            yield document.problem(key, item["input"], f"a known key: {expected}", did_you_mean(unknown, names))
        elif kind in MISSING:
            yield document.problem(key, NOTHING, "a value: this key is required")
        else:
            given = getattr(item["input"], "kwargs", item["input"])  # of a plugin: what it was called with
            yield document.problem(key, given, *_expected(item))


def _expected(item: Any) -> tuple[str, str]:
    """What pydantic wanted, and the nearest spelling where it wanted one of several words."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return PATTERNS_IN_WORDS.get(context["pattern"], f"text that matches {context['pattern']}"), ""
    if kind in BOUNDS:
        name, text = BOUNDS[kind]
        return text.format(context[name]), ""
    if kind == "literal_error":
        words = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return f"one of {', '.join(words)}", did_you_mean(str(item["input"]), words)
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "int_from_float":
        return KINDS["int"], ""
    return KINDS.get(kind.split("_")[0], item["msg"]), ""


def _fields_at(model: Any, path: tuple) -> Iterable[str]:
    """Names of the keys a pydantic model allows beside the unknown key that ends `path`."""
    for part in path[:-1]:
        model = (
            _inner(model.model_fields[part].annotation) if part in getattr(model, "model_fields", {}) else _inner(model)
        )
    return getattr(model, "model_fields", {}).keys()


def _inner(annotation: Any) -> Any:
    """The pydantic model inside `list[X]`, `dict[str, X]`, `X | None`."""
    candidates = [annotation, *typing.get_args(annotation)]
    nested = [inner for arg in typing.get_args(annotation) for inner in typing.get_args(arg)]
    return next((item for item in [*candidates, *nested] if hasattr(item, "model_fields")), annotation)


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
