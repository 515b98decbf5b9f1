"""KV-cache strategies: one file each. `STRATEGIES.names()` lists them without importing torch."""

from kvfrontier.registry import STRATEGIES

strategy = STRATEGIES.register
