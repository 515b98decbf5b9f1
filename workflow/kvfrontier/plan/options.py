"""What one part of a cell may be: an entry of the campaign file (`{name: h2o, budget: [0.1, 0.3]}`) and variants."""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from kvfrontier.errors import Problem, a, did_you_mean
from kvfrontier.plan.axes import Given
from kvfrontier.plan.cell import Component, Value
from kvfrontier.plan.document import Document, join_key
from kvfrontier.plan.problems import plugin_problems
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS, Registry

REGISTRIES: dict[str, Registry] = {"engine": ENGINES, "strategy": STRATEGIES, "workload": WORKLOADS}


@dataclass(frozen=True, eq=False)
class Option:
    """One value of one part of a cell: a Component with its validated plugin, or a plain name or number.

    keys: where in the campaign file each parameter comes from; under "" the key of the whole entry.
    """

    value: Component | str | int
    keys: Mapping[str, str]
    plugin: Any = None

    @cached_property
    def label(self) -> str:
        return self.value.label if isinstance(self.value, Component) else str(self.value)

    @cached_property
    def parameters(self) -> dict[str, Value]:
        """Name and every parameter of the plugin, defaults filled in."""
        return {"name": self.plugin.name, **plugin_values(self.plugin)}


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of an axis `engine`, `strategy` or `workload`: a plugin and the values its own parameters may take."""

    cls: type
    key: str
    own: dict[str, tuple[Given, ...]] = field(default_factory=dict)

    def fields(self) -> tuple[str, ...]:
        """Names of the plugin's parameters, in its order."""
        return field_names(self.cls)

    def variants(self, axes: Mapping[str, tuple[Given, ...]]) -> Iterator[dict[str, Given]]:
        """Every combination of values; a parameter the entry gives itself wins over an axis of the whole campaign."""
        choices = {name: self.own.get(name) or axes.get(name) for name in self.fields()}
        choices = {name: values for name, values in choices.items() if values}
        for combination in itertools.product(*choices.values()):
            yield dict(zip(choices, combination, strict=True))


def field_names(cls: type) -> tuple[str, ...]:
    """Names of a plugin's parameters."""
    return tuple(item.name for item in dataclasses.fields(cls))


def plugin_values(plugin: Any) -> dict[str, Value]:
    """Every parameter of a validated plugin, lists as tuples."""
    return {name: _plain(getattr(plugin, name)) for name in field_names(type(plugin))}


def read_entry(document: Document, section: str, given: Given) -> tuple[Entry | None, list[Problem]]:
    """`h2o` or `{name: h2o, budget: [0.1, 0.3]}` as an Entry; a list multiplies unless the parameter is a list."""
    registry = REGISTRIES[section]
    params = {"name": given.value} if isinstance(given.value, str) else given.value
    if not isinstance(params, dict) or not isinstance(params.get("name"), str):
        expected = f"the name of {a(section)}, or a mapping `{{name: ..., parameter: value}}`"
        return None, [document.problem(given.key, given.value, expected)]
    name = params["name"]
    if name not in registry.names():
        key = given.key if isinstance(given.value, str) else f"{given.key}.name"
        expected = f"{a(section)}: one of {', '.join(registry.names())}"
        return None, [document.problem(key, name, expected, did_you_mean(name, registry.names()))]
    cls = registry.get(name)
    problems: list[Problem] = []
    own: dict[str, tuple[Given, ...]] = {}
    for parameter, value in params.items():
        key = join_key(given.key, str(parameter))
        if parameter == "name":
            continue
        if parameter not in field_names(cls):
            expected = f"a parameter of {name}: {', '.join(field_names(cls)) or 'it has none'}"
            problems.append(document.problem(key, value, expected, did_you_mean(str(parameter), field_names(cls))))
        elif isinstance(value, list) and not value and not takes_list(cls, parameter):
            problems.append(document.problem(key, value, "at least one value"))
        elif isinstance(value, list) and not takes_list(cls, parameter):
            own[parameter] = tuple(Given(item, join_key(key, index)) for index, item in enumerate(value))
        else:
            own[parameter] = (Given(value, key),)
    return Entry(cls, given.key, own), problems


def read_option(document: Document, entry: Entry, given: Mapping[str, Given]) -> tuple[Option | None, list[Problem]]:
    """The validated plugin and its Component (parameters that differ from defaults) for one variant of an entry."""
    keys = {"": entry.key, **{name: item.key for name, item in given.items()}}
    try:
        plugin = entry.cls(**{name: item.value for name, item in given.items()})
    except ValidationError as error:

        def key_of(name: str) -> str:
            return keys.get(name) or join_key(entry.key, name)

        return None, plugin_problems(document, error, entry.fields(), key_of)
    values = plugin_values(plugin)
    problems = [
        document.problem(item.key, item.value, "a number")
        for name, item in given.items()
        if isinstance(item.value, bool) and isinstance(values[name], int | float) and not isinstance(values[name], bool)
    ]
    problems += [
        document.problem(item.key, item.value, "a number of at most 64 bits")
        for name, item in given.items()
        if isinstance(values[name], int) and abs(values[name]) >= 2**63
    ]
    if problems:
        return None, problems
    params = tuple(sorted((name, value) for name, value in values.items() if not _is_default(entry.cls, name, value)))
    return Option(Component(plugin.name, params), keys, plugin), []


def takes_list(cls: type, parameter: str) -> bool:
    """Whether a parameter's value is itself a list (typed tuple or list), so that a list does not multiply."""
    return _holds_list(cls.__pydantic_fields__[parameter].annotation)


def _holds_list(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return any(_holds_list(part) for part in typing.get_args(annotation))
    return isinstance(origin, type) and issubclass(origin, tuple | list)


def _is_default(cls: type, name: str, value: Value) -> bool:
    info = cls.__pydantic_fields__[name]
    if info.is_required():
        return False
    default = _plain(info.get_default(call_default_factory=True))
    return isinstance(default, bool) == isinstance(value, bool) and default == value


def _plain(value: Any) -> Value:
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else value
