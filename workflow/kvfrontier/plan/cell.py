"""One point of the grid: a frozen value, and the hash that names it for ever."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Value = bool | int | float | str | None | tuple


def content_hash(value: Any, length: int = 32) -> str:
    """Hash of a JSON-able value, independent of key order, process and machine; `length` hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # surrogatepass: the names of files need not be text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:length]


@dataclass(frozen=True)
class Component:
    """A plugin by name with the parameters that differ from its defaults, sorted by name.

    Defaults are left out so that a new parameter with a default does not rename every older cell.
    """

    name: str
    params: tuple[tuple[str, Value], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """`{"name": ..., **params}`: what a campaign file would say."""
        return {"name": self.name, **dict(self.params)}

    @cached_property
    def label(self) -> str:
        """`h2o(budget=0.3)`: unique within a campaign, short enough for a chart."""
        inner = ", ".join(f"{key}={value}" for key, value in self.params)
        return f"{self.name}({inner})" if inner else self.name


@dataclass(frozen=True)
class Cell:
    """model x engine x device x strategy x workload x seed. `model` and `device` are names in the config."""

    model: str
    engine: Component
    device: str
    strategy: Component
    workload: Component
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values: what is hashed, stored in the row, and enough to build the cell again."""
        return {
            "model": self.model,
            "engine": self.engine.as_dict(),
            "device": self.device,
            "strategy": self.strategy.as_dict(),
            "workload": self.workload.as_dict(),
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Cell:
        """Inverse of `as_dict` (lists become tuples)."""

        def component(section: dict[str, Any]) -> Component:
            params = {key: _freeze(item) for key, item in section.items() if key != "name"}
            return Component(section["name"], tuple(sorted(params.items())))

        return cls(
            model=value["model"],
            engine=component(value["engine"]),
            device=value["device"],
            strategy=component(value["strategy"]),
            workload=component(value["workload"]),
            seed=value["seed"],
        )

    @cached_property
    def cell_id(self) -> str:
        """20 hex digits of the hash of the parameters: the join key across code versions."""
        return content_hash(self.as_dict(), 20)


def _freeze(value: Any) -> Value:
    return tuple(_freeze(item) for item in value) if isinstance(value, list | tuple) else value
