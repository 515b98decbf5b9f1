"""The strategies that a campaign says the others are to be compared with, item by item: `against: [h2o]`.

Said before anything is measured, so that the comparisons are few and not chosen by their result. The plan on disk
carries them as metadata of its cells: they change no cell and no fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvfrontier.errors import Problem, did_you_mean
from kvfrontier.plan.cell import Component
from kvfrontier.plan.document import NOT_TEXT, Document, show
from kvfrontier.plan.options import Option

KEY = b"kvfrontier_against"


def read_against(
    document: Document, given: Sequence[Any], options: Iterable[Option]
) -> tuple[tuple[str, ...], list[Problem]]:
    """Labels, without budget, of the strategies that the entries of `against` name, and what is wrong with them.

    An entry is a name, or a mapping of some of the parameters; it must fit one strategy of the campaign, at whatever
    budgets.
    """
    labels: list[str] = []
    problems: list[Problem] = []
    known = {_label(option): option.parameters for option in options}
    for index, entry in enumerate(given):
        wanted = entry if isinstance(entry, dict) else {"name": entry}
        fits = [label for label, parameters in known.items() if _fits(parameters, wanted)]
        if isinstance(entry, str) and entry in known:
            fits = [entry]  # `h2o` beside `h2o(decode_evict=off)`
        if len(fits) == 1:
            labels += fits
            continue
        expected = f"one strategy of this campaign: {'; '.join(fits or known)}"
        hint = "" if fits else did_you_mean(str(wanted.get("name")), [str(p["name"]) for p in known.values()])
        problems.append(document.problem(f"against[{index}]", entry, expected, hint))
    return tuple(dict.fromkeys(labels)), problems


def _label(option: Option) -> str:
    component = option.value
    return Component(component.name, tuple(item for item in component.params if item[0] != "budget")).label


def _fits(parameters: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(name in parameters and show(_plain(parameters[name])) == show(value) for name, value in wanted.items())


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def to_metadata(against: Sequence[str]) -> dict[bytes, bytes]:
    """What `stored_against` reads again."""
    return {KEY: json.dumps(list(against)).encode()}


def stored_against(campaign_dir: Path) -> list[str]:
    """The labels in a plan on disk; none where it says none, or nothing that can be believed."""
    try:
        metadata = pq.read_schema(campaign_dir / "plan" / "cells.parquet").metadata or {}
        labels = json.loads(metadata.get(KEY, b"[]"))
    except (OSError, pa.ArrowException, ValueError):
        return []
    is_list = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    return [label for label in labels if not NOT_TEXT.search(label)] if is_list else []
