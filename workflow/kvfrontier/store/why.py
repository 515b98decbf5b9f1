"""Why each planned cell would be measured, in words: which code, model, package or value, and not only which part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import duckdb
import pyarrow as pa

from kvfrontier.plan.axes import PLUGIN_SECTIONS, SECTIONS
from kvfrontier.store.rows import read_files
from kvfrontier.store.standing import NEW, Standing

DEFAULT = "its default"
CODE = {
    "strategy_code": "the code of strategy {strategy} changed",
    "engine_code": "the code of engine {engine} changed",
    "workload_code": "the code of workload {workload} changed",
    "reference_code": "the code of a strategy that workload {workload} compares with changed",
    "data": "the data that workload {workload} reads changed",
    "device": "the declared rates of device {device} changed",
}


def in_words(plan: pa.Table, found: Sequence[Standing], campaign_dir: Path) -> list[str]:
    """One reason for each row of a plan (`plan.table.PLAN`), from its Standing."""
    news = [index for index, standing in enumerate(found) if standing.state == "measure" and standing.reason == NEW]
    novelty = dict(zip(news, _novelties(plan.take(pa.array(news, pa.int64())), campaign_dir), strict=True))
    names = ("model", "engine", "device", "strategy", "workload", "source")
    columns = zip(*(plan.column(name).to_pylist() for name in names), strict=True)
    return [
        _changes(tuple(standing.changes.items()), *values) if standing.changes else novelty.get(index, standing.reason)
        for index, (standing, values) in enumerate(zip(found, columns, strict=True))
    ]


@lru_cache(maxsize=4096)
def _changes(changes: tuple, model: str, engine: str, device: str, strategy: str, workload: str, source: str) -> str:
    names = {"engine": engine, "device": device, "strategy": strategy, "workload": workload}
    texts = []
    for part, (before, now) in changes:
        kind, _, package = part.partition(":")
        if kind == "package":
            texts.append(f"package {package} {before} -> {now}")
        elif part == "model":
            texts.append(_model_change(model, source, before, now))
        else:
            texts.append(CODE.get(part, f"{part} changed").format(**names))
    return ", ".join(texts)


def _model_change(model: str, source: str, before: str, now: str) -> str:
    if source == "model":
        return f"the shape of model {model} changed"
    if "@" in before and "@" in now:  # `organisation/name@revision`
        return f"model {model} {_short(before)} -> {_short(now)}"
    return f"the weights of model {model} changed"


def _short(identity: str) -> str:
    name, _, revision = identity.rpartition("@")
    return f"{name}@{revision[:8]}"


def _novelties(cells: pa.Table, campaign_dir: Path) -> list[str]:
    """What no stored row has of each of these cells; `new` where nothing is stored yet."""
    if not len(cells):
        return []
    tables, _ = read_files(campaign_dir, ["cell"])
    stored = pa.concat_tables([cells.select(["cell"]).slice(0, 0), *tables])
    if not len(stored):
        return [NEW] * len(cells)
    unseen = []
    for section, texts, stored_texts in zip(SECTIONS, _sections(cells), _sections(stored), strict=True):
        known = _Known(section, set(stored_texts))
        words = {text: known.unseen(text) for text in set(texts)}
        unseen.append([words[text] for text in texts])
    combination = "a combination that was not measured yet"
    return [f"{NEW}: {', '.join(filter(None, row)) or combination}" for row in zip(*unseen, strict=True)]


def _sections(cells: pa.Table) -> list[list[str]]:
    """The JSON text of each part of each cell, a list for each of SECTIONS; empty where a row's cell is no JSON."""
    columns = ", ".join(f"coalesce((parsed->'$.{name}')::VARCHAR, '')" for name in SECTIONS)
    with duckdb.connect() as connection:
        connection.register("cells", cells.select(["cell"]))
        answer = connection.sql(f"SELECT {columns} FROM (SELECT TRY_CAST(cell AS JSON) AS parsed FROM cells)")
        return [column.to_pylist() for column in answer.to_arrow_table().columns]


class _Known:
    """What stored rows have in one section: names, and the values of each parameter of each name."""

    def __init__(self, section: str, texts: set[str]):
        self._section = section
        self._values = [json.loads(text) for text in texts if text]

    def unseen(self, text: str) -> str:
        """What is new in this part of a cell, in words; empty where a stored row has just this."""
        value = json.loads(text)
        if value in self._values:
            return ""
        if self._section not in PLUGIN_SECTIONS:
            return f"{self._section} {value}"
        name = value["name"]
        namesakes = [item for item in self._values if isinstance(item, dict) and item.get("name") == name]
        changed = [
            f"{key}={value.get(key, DEFAULT)}"
            for key in sorted({key for item in (value, *namesakes) for key in item})
            if value.get(key) not in [item.get(key) for item in namesakes]
        ]
        if not namesakes:
            return f"{self._section} {name}"
        return f"{self._section} {name} with {', '.join(changed) or 'another combination of parameters'}"
