"""The `axes` and `zip` of a campaign file as lists of values that know where they stand. Looks at no plugin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvfrontier.errors import Problem, did_you_mean
from kvfrontier.plan.document import NOTHING, Document, Text, join_key

SECTIONS = ("model", "engine", "device", "workload", "strategy", "seed")
"""The parts of a cell, outermost first: the order of cells in a plan."""
PLUGIN_SECTIONS = ("engine", "workload", "strategy")


@dataclass(frozen=True)
class Given:
    """A value of the campaign file and the key it stands at (`axes.strategy[2].budget`)."""

    value: Any
    key: str


@dataclass(frozen=True)
class Axes:
    """product: values by path, all combined. zips: groups of rows; one row of each group applies at a time."""

    product: dict[str, tuple[Given, ...]]
    zips: tuple[tuple[dict[str, Given], ...], ...] = ()

    def rows(self) -> Iterator[dict[str, Given]]:
        """Every combination of one row from each zip, merged; a single empty row without zips."""
        for chosen in itertools.product(*self.zips):
            yield {path: given for row in chosen for path, given in row.items()}

    def paths(self) -> dict[str, str]:
        """Every path and the key of the axis it is given by."""
        zipped = {path: given.key.rsplit("[", 1)[0] for group in self.zips for path, given in group[0].items()}
        return {path: f"axes.{path}" for path in self.product} | zipped

    def given(self, path: str) -> list[Given]:
        """All values a path takes, from the product and from zips."""
        zipped = [row[path] for group in self.zips for row in group if path in row]
        return [*self.product.get(path, ()), *zipped]


def read_axes(document: Document) -> tuple[Axes, list[Problem]]:
    """Axes out of a campaign file, the sugar (`device`, `repeats`) resolved, and all that is wrong with their form."""
    problems: list[Problem] = []
    product = _read_product(document, problems)
    zips = _read_zips(document, problems)
    _add_sugar(document, product, zips, problems)
    _check_once(document, product, zips, problems)
    present = {*product, *(path for group in zips for path in group[0])}
    for path in sorted(present):
        _check_path(document, path, product, zips, problems)
    problems += [
        document.problem(f"axes.{section}", NOTHING, f"at least one {section}")
        for section in SECTIONS
        if section not in present and section != "seed" and not _tried(document, section)
    ]
    product.setdefault("seed", (Given(0, "axes.seed"),))
    return Axes(product, tuple(zips)), problems


def _tried(document: Document, section: str) -> bool:
    """Whether the file names the section (or has no axes at all); what is wrong is then reported elsewhere."""
    if not isinstance(document.data.get("axes"), dict):
        return True
    return any(where.get(section) is not None for where in (document.data["axes"], document.data))


def _read_product(document: Document, problems: list[Problem]) -> dict[str, tuple[Given, ...]]:
    axes = document.data.get("axes")
    product: dict[str, tuple[Given, ...]] = {}
    for path, value in axes.items() if isinstance(axes, dict) else ():
        key = join_key("axes", str(path))
        if isinstance(value, list) and not value:
            problems.append(document.problem(key, Text("an empty list"), "at least one value, or no such axis at all"))
        elif isinstance(value, list):
            product[str(path)] = tuple(Given(item, join_key(key, index)) for index, item in enumerate(value))
        else:
            product[str(path)] = (Given(value, key),)
    return product


def _read_zips(document: Document, problems: list[Problem]) -> list[tuple[dict[str, Given], ...]]:
    groups = document.data.get("zip")
    zips = []
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        key = join_key("zip", number)
        if not isinstance(group, dict) or not all(isinstance(values, list) for values in group.values()):
            continue  # the document's shape says so already
        lengths = {path: len(values) for path, values in group.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            found = ", ".join(f"{path}: {length} values" for path, length in lengths.items()) or "no axis"
            problems.append(document.problem(key, Text(found), "lists of one length, at least one value each"))
            continue
        columns = {
            str(path): [Given(item, f"{key}.{path}[{index}]") for index, item in enumerate(values)]
            for path, values in group.items()
        }
        zips.append(tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)))
    return zips


def _add_sugar(document: Document, product: dict, zips: list, problems: list[Problem]) -> None:
    for key, path in (("device", "device"), ("repeats", "workload.repeats")):
        value = document.data.get(key)
        if value is None:
            continue
        if path in product or any(path in group[0] for group in zips):
            expected = f"either `{key}:` or an axis `{path}`, not both"
            problems.append(document.problem(key, value, expected))
        elif not isinstance(value, dict | list):
            product[path] = (Given(value, key),)


def _check_once(document: Document, product: dict, zips: list, problems: list[Problem]) -> None:
    owners: dict[str, str] = {path: values[0].key for path, values in product.items()}
    for group in zips:
        for path, given in group[0].items():
            if path in owners:
                got = Text(f"a path that {owners[path]} gives too")
                problems.append(document.problem(given.key.rsplit("[", 1)[0], got, "each path in one place"))
            owners.setdefault(path, given.key)


def _check_path(document: Document, path: str, product: dict, zips: list, problems: list[Problem]) -> None:
    section, dot, _ = path.partition(".")
    if (section in PLUGIN_SECTIONS) if dot else (section in SECTIONS):
        return
    key = Axes(product, tuple(zips)).paths()[path]
    if dot and section in SECTIONS:
        problems.append(document.problem(key, Text(f"'{path}'"), f"`{section}` alone: it has no parameters to sweep"))
        return
    expected = f"one of {', '.join(SECTIONS)}, or a parameter such as strategy.budget or workload.batch_size"
    nearest = did_you_mean(section, SECTIONS) or did_you_mean(path, SECTIONS)
    hint = nearest.replace("'?", f".{path.partition('.')[2]}'?") if dot and nearest else nearest
    problems.append(document.problem(key, Text(f"'{path}'"), expected, hint))
