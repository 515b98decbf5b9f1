"""What holds other strategies must pass every hook on to them: a new hook in base.py fails here until it does."""

from __future__ import annotations

import pytest
from kvfrontier.strategies._eviction import Eviction
from kvfrontier.strategies._wrapped import Wrapped
from kvfrontier.strategies.base import Strategy
from kvfrontier.strategies.stack import Stack

OWN = {
    "needs": "`requires` says it of all parts",
    "acts": "whatever evicts acts",
    "exact": "the base says the safe thing of what acts",
    "budget": "of the whole, which hands it on",
    "budget_ref": "of the whole, which hands it on",
}
OF_STACK = OWN | {"storage": "`storages` makes all layers: a tier's share a link"}


@pytest.mark.parametrize(
    ("outer", "inside", "own"),
    [(Stack, (Strategy,), OF_STACK), (Wrapped, (Strategy, Eviction), OWN)],
    ids=["stack", "wrapped"],
)
def test_every_hook_is_passed_on(outer, inside, own):
    hooks = {name for base in inside for name in vars(base) if not name.startswith("_")}
    assert "observe" in hooks
    assert hooks - set(vars(outer)) - set(own) == set()
