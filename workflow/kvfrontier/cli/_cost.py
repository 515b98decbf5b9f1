"""What cells to measure cost, and what that number stands on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfrontier.run.estimate import Estimate

BASES = {"measured": "measured", "similar": "similar", "model": "modelled"}
HOURS_FROM_S = 360.0
"""Below this, minutes and seconds say more than a fraction of an hour."""


@dataclass
class Cost:
    """Cells and the seconds that they take one after another, on a device each."""

    cells: int = 0
    seconds: float = 0.0
    bases: Counter[str] = field(default_factory=Counter)

    def add(self, estimate: Estimate) -> None:
        """One more cell."""
        self.cells += 1
        self.seconds += estimate.seconds
        self.bases[BASES[estimate.basis]] += 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `basis` counts the cells whose time was measured, is that of similar ones, or is modelled."""
        bases = {basis: self.bases[basis] for basis in BASES.values()}
        return {"cells": self.cells, "device_hours": self.seconds / 3600, "basis": bases}


def sum_up(keys: Iterable[Hashable], estimates: Iterable[Estimate]) -> dict[Hashable, Cost]:
    """Cells by key, the most numerous first."""
    costs: dict[Hashable, Cost] = {}
    for key, estimate in zip(keys, estimates, strict=True):
        costs.setdefault(key, Cost()).add(estimate)
    return dict(sorted(costs.items(), key=lambda item: -item[1].cells))


def total(estimates: Iterable[Estimate]) -> Cost:
    """All cells together."""
    cost = Cost()
    for estimate in estimates:
        cost.add(estimate)
    return cost


def device_time(hours: float) -> str:
    """`3.2 device hours`, or `1 min 20 s of device time`."""
    from kvfrontier.units import format_seconds

    seconds = hours * 3600
    return f"{hours:,.3g} device hours" if seconds >= HOURS_FROM_S else f"{format_seconds(seconds)} of device time"


def spent(cost: dict[str, Any]) -> str:
    """`about 3.2 device hours (measured 300, similar 100, modelled 12)` of a `Cost.as_dict()`."""
    bases = ", ".join(f"{basis} {count:,}" for basis, count in cost["basis"].items() if count)
    return f"about {device_time(cost['device_hours'])} ({bases})"
