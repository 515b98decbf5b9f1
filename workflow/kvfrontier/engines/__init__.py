"""Engines run a model under a strategy: one file each."""

from kvfrontier.registry import ENGINES

engine = ENGINES.register
