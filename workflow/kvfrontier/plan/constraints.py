"""`drop` and `require` of a campaign: which cells of the product are left out. Judged a part at a time, not a cell."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from kvfrontier.errors import Problem, a, did_you_mean
from kvfrontier.plan.axes import PLUGIN_SECTIONS, SECTIONS
from kvfrontier.plan.cell import Component
from kvfrontier.plan.choices import Choices
from kvfrontier.plan.document import Document, join_key
from kvfrontier.plan.options import REGISTRIES, Option

ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
OPERATORS = ("eq", "ne", *ORDERINGS, "in", "not_in")
ABSENT = object()


@dataclass(frozen=True)
class Condition:
    """A path and what its value must fulfil. masks per option: `has` the path, and `holds` (has it and matches)."""

    path: str
    section: str
    has: tuple[bool, ...]
    holds: tuple[bool, ...]


@dataclass(frozen=True)
class Constraint:
    """One entry of `constraints`. `drops(combination)` decides over a cell given as option indexes by SECTIONS."""

    key: str
    drop: tuple[Condition, ...] = ()
    require: tuple[Condition, ...] = ()
    when: tuple[Condition, ...] = ()
    _columns: dict[str, int] = field(default_factory=lambda: {section: index for index, section in enumerate(SECTIONS)})

    def drops(self, combination: tuple[int, ...]) -> bool:
        """Whether the cell is left out: all of `drop` match, or some path of `require` is there and does not match."""
        at = self._columns
        if not all(item.holds[combination[at[item.section]]] for item in self.when):
            return False
        if self.drop:
            return all(item.holds[combination[at[item.section]]] for item in self.drop)
        return any(
            item.has[combination[at[item.section]]] and not item.holds[combination[at[item.section]]]
            for item in self.require
        )


def read_constraints(
    document: Document, choices: Choices, catalogs: Mapping[str, Mapping[str, Any] | None]
) -> tuple[list[Constraint], list[Problem]]:
    """The constraints with their conditions judged for every option, and all that is wrong with them."""
    constraints, problems = [], []
    entries = document.data.get("constraints")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        key = join_key("constraints", number)
        parts: dict[str, tuple[Condition, ...]] = {}
        for part in ("drop", "require", "when"):
            conditions = entry.get(part) if isinstance(entry, dict) else None
            found = []
            for path, condition in conditions.items() if isinstance(conditions, dict) else ():
                where = f"{key}.{part}.{path}"
                wrong = _check(document, where, str(path), condition, choices, catalogs)
                problems += wrong
                if not wrong:
                    found.append(_judge(str(path), condition, choices))
            parts[part] = tuple(found)
        constraints.append(Constraint(key, **parts))
    return constraints, problems


def _judge(path: str, condition: Any, choices: Choices) -> Condition:
    section = path.partition(".")[0]
    values = [_value_at(option, path) for option in choices.options[section]]
    has = tuple(value is not ABSENT for value in values)
    return Condition(path, section, has, tuple(value is not ABSENT and _matches(value, condition) for value in values))


def _value_at(option: Option, path: str) -> Any:
    _, dot, name = path.partition(".")
    if not isinstance(option.value, Component):
        return option.value
    return option.parameters.get(name, ABSENT) if dot else option.value.name


def _matches(value: Any, condition: Any) -> bool:
    tests = condition if isinstance(condition, dict) else {"in" if isinstance(condition, list) else "eq": condition}
    return all(_test(value, name, wanted) for name, wanted in tests.items())


def _test(value: Any, name: str, wanted: Any) -> bool:
    if name in ("in", "not_in"):
        return any(_equal(value, item) for item in wanted) == (name == "in")
    if name in ("eq", "ne"):
        return _equal(value, wanted) == (name == "eq")
    return isinstance(value, int | float) and not isinstance(value, bool) and ORDERINGS[name](value, wanted)


def _equal(value: Any, wanted: Any) -> bool:
    wanted = tuple(wanted) if isinstance(wanted, list) else wanted
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def _check(
    document: Document, key: str, path: str, condition: Any, choices: Choices, catalogs: Mapping[str, Any]
) -> list[Problem]:
    """What is wrong with one `path: condition`: the path, the operator, a name that nothing is called."""
    section, dot, name = path.partition(".")
    if section not in SECTIONS or (dot and section not in PLUGIN_SECTIONS):
        expected = f"a path: one of {', '.join(SECTIONS)}, or a parameter such as strategy.budget"
        return [document.problem(key, path, expected, did_you_mean(section, SECTIONS))]
    fields = choices.fields(section) if dot else []
    if not choices.options[section]:
        return []  # the section itself is wrong, and reported
    if dot and name not in (*fields, "name"):
        expected = f"a parameter that this campaign's {section} axis has: {', '.join(fields) or 'none'}"
        return [document.problem(key, path, expected, did_you_mean(name, fields))]

    def check_values(where: str, wanted: Any) -> list[Problem]:
        if wanted == []:
            return [document.problem(where, wanted, "at least one value")]
        if section == "seed" or (dot and name != "name"):
            return _check_kinds(
                document, where, wanted, [_value_at(option, path) for option in choices.options[section]]
            )
        return _check_names(document, where, wanted, section, catalogs)

    if isinstance(condition, dict):
        return _check_operators(document, key, condition, check_values)
    return check_values(key, condition)


def _check_operators(
    document: Document, key: str, condition: dict, check_values: Callable[[str, Any], list[Problem]]
) -> list[Problem]:
    if not condition:
        return [document.problem(key, condition, f"a value, a list or operators: {', '.join(OPERATORS)}")]
    problems = []
    for name, wanted in condition.items():
        where = f"{key}.{name}"
        if name not in OPERATORS:
            expected = f"an operator: {', '.join(OPERATORS)}"
            problems.append(document.problem(where, wanted, expected, did_you_mean(str(name), OPERATORS)))
        elif name in ORDERINGS and (isinstance(wanted, bool) or not isinstance(wanted, int | float) or isnan(wanted)):
            problems.append(document.problem(where, wanted, "a number"))
        elif name in ("in", "not_in") and not isinstance(wanted, list):
            problems.append(document.problem(where, wanted, "a list of values"))
        else:
            problems += check_values(where, wanted)
    return problems


def _check_kinds(document: Document, key: str, wanted: Any, values: list[Any]) -> list[Problem]:
    """Text never equals a number: a slip of quotes."""
    present = [value for value in values if value is not ABSENT]
    if not present or any(isinstance(value, bool) or not isinstance(value, int | float) for value in present):
        return []
    return [
        document.problem(key, item, "a number without quotes, as the values here are")
        for item in (wanted if isinstance(wanted, list) else [wanted])
        if isinstance(item, str)
    ]


def _check_names(document: Document, key: str, wanted: Any, section: str, catalogs: Mapping) -> list[Problem]:
    """A model, device or plugin that nothing is called would never match: a slip of the pen."""
    known = catalogs.get(section) if section in catalogs else REGISTRIES[section].names()
    values = wanted if isinstance(wanted, list) else [wanted]
    return [
        document.problem(key, value, f"the name of {a(section)}: {', '.join(known)}", did_you_mean(str(value), known))
        for value in values
        if known is not None and not (isinstance(value, str) and value in known)
    ]
