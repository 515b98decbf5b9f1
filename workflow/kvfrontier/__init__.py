"""kvfrontier: measure KV-cache strategies over declarative sweeps and draw their frontiers.

Importing this package, or listing the names of its plugins, imports neither torch nor ray nor vllm.
"""

__version__ = "0.1.0"
