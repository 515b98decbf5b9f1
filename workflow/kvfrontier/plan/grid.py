"""From axes to cells: the product of all choices, less what constraints drop and what is said twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvfrontier.errors import ConfigError
from kvfrontier.plan.axes import SECTIONS
from kvfrontier.plan.campaign import Campaign
from kvfrontier.plan.cell import Cell
from kvfrontier.plan.choices import Choices
from kvfrontier.plan.document import Text

Combination = tuple[int, ...]
"""One cell as an option index for each of SECTIONS."""


@dataclass
class Grid:
    """The combinations to measure, in the order of SECTIONS, and what became of the others."""

    combinations: list[Combination]
    dropped: int = 0
    duplicates: int = 0
    notes: list[str] = field(default_factory=list)


def expand(campaign: Campaign) -> Grid:
    """All cells of a campaign. Raises ConfigError when there are none."""
    choices = campaign.choices
    grid = Grid([], notes=list(choices.notes))
    same = _same_options(choices)
    unique: dict[Combination, Combination] = {}
    dropped_by = dict.fromkeys((constraint.key for constraint in campaign.constraints), 0)
    for combination in _combinations(choices):
        constraint = next((item for item in campaign.constraints if item.drops(combination)), None)
        if constraint:
            dropped_by[constraint.key] += 1
            continue
        merged = tuple(column[index] for column, index in zip(same, combination, strict=True))
        if merged in unique:
            grid.duplicates += 1
            if grid.duplicates == 1:
                example = _duplicate_note(campaign, unique[merged], combination)
        else:
            unique[merged] = combination
    grid.combinations = list(unique)
    grid.dropped = sum(dropped_by.values())
    if grid.duplicates:
        grid.notes.append(
            f"{campaign.document.file}: {grid.duplicates} cells are given more than once and count once: {example}"
        )
    for constraint in campaign.constraints:
        place = campaign.document.place(constraint.key)
        if not dropped_by[constraint.key]:
            grid.notes.append(f"{place}: {constraint.key} drops no cell")
        for item in constraint.require:
            if any(item.has) and not any(item.holds):
                grid.notes.append(f"{place}: {constraint.key}.require.{item.path} is fulfilled by no cell")
    if not grid.combinations:
        found = Text(f"rules that drop all {grid.dropped} cells")
        raise ConfigError([campaign.document.problem("constraints", found, "at least one cell left")])
    return grid


def build_cell(choices: Choices, combination: Combination) -> Cell:
    """The frozen value a combination stands for."""
    parts = {
        section: choices.options[section][index].value for section, index in zip(SECTIONS, combination, strict=True)
    }
    return Cell(**parts)


def _combinations(choices: Choices) -> Iterator[Combination]:
    """Every combination of options once: rows of a zip that do not touch a part of the cell give it again."""
    if len(choices.rows) == 1:
        yield from itertools.product(*choices.rows[0])
        return
    seen: set[Combination] = set()
    for row in choices.rows:
        for combination in itertools.product(*row):
            if combination not in seen:
                seen.add(combination)
                yield combination


def _same_options(choices: Choices) -> list[list[int]]:
    """For each section, option index -> index of the first option with the same value."""
    columns = []
    for section in SECTIONS:
        first: dict = {}
        columns.append([first.setdefault(option.value, index) for index, option in enumerate(choices.options[section])])
    return columns


def _duplicate_note(campaign: Campaign, one: Combination, other: Combination) -> str:
    options = campaign.choices.options
    pairs = [
        (options[section][left], options[section][right])
        for section, left, right in zip(SECTIONS, one, other, strict=True)
        if left != right
    ]
    return "; ".join(f"{left.label} by {_keys(left.keys)} and by {_keys(right.keys)}" for left, right in pairs)


def _keys(keys: dict[str, str]) -> str:
    return " with ".join(dict.fromkeys(keys.values()))
