"""Everything each part of a cell may be in one campaign: names checked against the catalogs, plugins validated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvfrontier.errors import ConfigError, Problem, a, did_you_mean
from kvfrontier.plan.axes import PLUGIN_SECTIONS, SECTIONS, Axes, Given
from kvfrontier.plan.document import Document, Text
from kvfrontier.plan.options import Entry, Option, read_entry, read_option

MAX_CELLS = 1_000_000
"""A grid above this is a slip (a forgotten `zip`), and would not fit in memory."""

MAX_SEED = 2**32 - 1
"""What every random number generator takes as a seed."""


@dataclass
class Choices:
    """options: all options of each section. rows: for each row of the zips, which of them are combined.

    Options are distinct by where their values stand in the file; two may still be the same value.
    """

    options: dict[str, list[Option]] = field(default_factory=lambda: {section: [] for section in SECTIONS})
    rows: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fields(self, section: str) -> list[str]:
        """Parameters that at least one plugin of the campaign has in this section, sorted."""
        return sorted({name for option in self.options[section] for name in option.parameters if name != "name"})


def read_choices(
    document: Document, axes: Axes, models: Mapping[str, Any] | None, devices: Mapping[str, Any] | None
) -> tuple[Choices, list[Problem]]:
    """Resolve all axes. A catalog that is None could not be read: its names are not checked."""
    return _Reader(document, axes, {"model": models, "device": devices}).read()


class _Reader:
    def __init__(self, document: Document, axes: Axes, catalogs: dict[str, Mapping[str, Any] | None]):
        self.document, self.axes, self.catalogs = document, axes, catalogs
        self.problems: dict[Problem, None] = {}  # in order, each once
        self.choices = Choices()
        self.entries: dict[str, Entry | None] = {}
        self.indexes: dict[tuple, int | None] = {}
        self.lists: dict[tuple, tuple[int, ...]] = {}

    def read(self) -> tuple[Choices, list[Problem]]:
        for section in PLUGIN_SECTIONS:
            for given in self.axes.given(section):
                entry, problems = read_entry(self.document, section, given)
                self.report(problems)
                self.entries[given.key] = entry
        self.check_fields()
        if self.is_absurd(self.least()):
            return self.choices, list(self.problems)
        cells = 0
        for row in self.axes.rows():
            cells += math.prod(max(1, self.count(section, row)) for section in SECTIONS)
            if self.is_absurd(cells):
                break
            self.choices.rows.append(tuple(self.options(section, row) for section in SECTIONS))
        return self.choices, list(self.problems)

    def report(self, problems: Iterable[Problem]) -> None:
        self.problems.update(dict.fromkeys(problems))

    def is_absurd(self, cells: int) -> bool:
        """Whether there are too many cells, which is reported; asked before any of them is made."""
        if cells > MAX_CELLS:
            expected = f"at most {MAX_CELLS:,}: `zip` axes that belong together, or split the campaign"
            self.report([self.document.problem("axes", Text(f"{cells:,} cells, or more"), expected)])
        return cells > MAX_CELLS

    def least(self) -> int:
        """Cells that there are at least."""
        zipped: dict[str, Any] = dict.fromkeys(path for group in self.axes.zips for path in group[0])
        fewest = (
            min((self.count(section, {**zipped, section: given}) for given in self.axes.given(section)), default=1)
            if section in zipped
            else self.count(section, zipped)
            for section in SECTIONS
        )
        return math.prod((*map(len, self.axes.zips), *(max(1, count) for count in fewest)))

    def check_fields(self) -> None:
        """Each dotted axis must be a parameter of some plugin of the campaign, and should have an effect."""
        for path, key in self.axes.paths().items():
            section, dot, name = path.partition(".")
            entries = (
                [self.entries[given.key] for given in self.axes.given(section)]
                if dot and section in PLUGIN_SECTIONS
                else []
            )
            if not entries or None in entries:  # nothing to hold it against; that is reported already
                continue
            having = [entry for entry in entries if name in entry.fields()]
            if not having and self.axes.given(path)[0].key != "repeats":
                known = sorted({known for entry in entries for known in entry.fields()})
                expected = f"a parameter of this campaign's {_plural(section)}: {', '.join(known) or 'they have none'}"
                self.report([self.document.problem(key, Text(f"'{path}'"), expected, did_you_mean(name, known))])
            elif having and all(name in entry.own for entry in having):
                self.choices.notes.append(
                    f"{self.document.place(key)}: {key} has no effect: each {section} gives its own {name}"
                )

    def options(self, section: str, row: Mapping[str, Given]) -> tuple[int, ...]:
        """Indexes of the section's options under one row of the zips."""
        mine = {path: given for path, given in row.items() if path.partition(".")[0] == section}
        cache_key = (section, *((path, given.key) for path, given in mine.items()))
        if cache_key not in self.lists:
            axes = self.axes.product | {path: (given,) for path, given in mine.items()}
            self.lists[cache_key] = tuple(self.resolve(section, axes))
        return self.lists[cache_key]

    def count(self, section: str, row: Mapping[str, Given]) -> int:
        """How many options the section has under one row of the zips, without making any."""
        lengths = {path: len(values) for path, values in self.axes.product.items()} | dict.fromkeys(row, 1)
        if section not in PLUGIN_SECTIONS:
            return lengths.get(section, 0)
        given = [row[section]] if section in row else self.axes.product.get(section, ())
        entries = [entry for item in given if (entry := self.entries.get(item.key))]
        return sum(
            math.prod(len(entry.own.get(name, ())) or lengths.get(f"{section}.{name}", 1) for name in entry.fields())
            for entry in entries
        )

    def resolve(self, section: str, axes: Mapping[str, tuple[Given, ...]]) -> Iterable[int]:
        if section not in PLUGIN_SECTIONS:
            found = [
                self.intern(section, (given.key,), lambda g=given: self.plain(section, g))
                for given in axes.get(section, ())
            ]
            return [index for index in found if index is not None]
        shared = {path.partition(".")[2]: values for path, values in axes.items() if path.startswith(f"{section}.")}
        found = []
        for given in axes.get(section, ()):
            entry = self.entries.get(given.key)
            for variant in entry.variants(shared) if entry else ():
                identity = (given.key, *(item.key for item in variant.values()))
                found.append(
                    self.intern(section, identity, lambda e=entry, v=variant: read_option(self.document, e, v))
                )
        return [index for index in found if index is not None]

    def intern(self, section: str, identity: tuple, make: Any) -> int | None:
        """Index of the option made of the values at these keys; made once. None: it is wrong, and reported."""
        identity = (section, *identity)
        if identity not in self.indexes:
            option, problems = make()
            self.report(problems)
            self.indexes[identity] = len(self.choices.options[section]) if option else None
            if option:
                self.choices.options[section].append(option)
        return self.indexes[identity]

    def plain(self, section: str, given: Given) -> tuple[Option | None, list[Problem]]:
        """A model, a device or a seed."""
        value, problems = given.value, []
        if section == "seed":
            value = _whole_number(value)
            if value is None or not 0 <= value <= MAX_SEED:
                expected = f"a whole number of 0 or more, at most {MAX_SEED}"
                problems = [self.document.problem(given.key, given.value, expected)]
        elif not isinstance(value, str):
            problems = [self.document.problem(given.key, value, f"the name of {a(section)} in config/{section}s.yaml")]
        else:
            problems = self.look_up(section, given)
        return (None, problems) if problems else (Option(value, {"": given.key}), [])

    def look_up(self, section: str, given: Given) -> list[Problem]:
        catalog = self.catalogs[section]
        if catalog is None:
            return []
        if given.value not in catalog:
            expected = f"{a(section)} in config/{section}s.yaml: {', '.join(catalog)}"
            return [self.document.problem(given.key, given.value, expected, did_you_mean(given.value, catalog))]
        try:
            catalog[given.value]  # reads a model's folder
        except ConfigError as error:
            return list(error.problems)
        return []


def _whole_number(value: Any) -> int | None:
    """1, 1.0 and "1" are all 1; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def _plural(section: str) -> str:
    return {"strategy": "strategies"}.get(section, f"{section}s")
