"""Strategies that the torch engine runs; others belong to engines of their own."""

from __future__ import annotations

from kvfrontier.engines.torch import Torch
from kvfrontier.errors import Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES


def _runs(name: str) -> bool:
    try:
        Torch().check(STRATEGIES.get(name)(), ModelSpec("any"))
    except Unsupported:
        return False
    return True


TORCH_STRATEGIES = tuple(name for name in STRATEGIES.names() if _runs(name))
