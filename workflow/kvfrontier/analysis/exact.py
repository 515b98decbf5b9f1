"""Which strategies lose nothing by their own declaration: quality that no measurement could have found to differ."""

from __future__ import annotations

import json

import duckdb

from kvfrontier.errors import KVFrontierError
from kvfrontier.registry import STRATEGIES

READINGS, ALWAYS = "readings", "always"
"""As `Strategy.exact` says it."""


def exactness(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """strategy_label -> READINGS or ALWAYS, as the strategy says of these settings; others are not in it.

    A strategy that this code no longer has, or not with these settings, says nothing.
    """
    rows = connection.sql("""
        SELECT DISTINCT c.strategy_label, h.cell::JSON->>'$.strategy'
        FROM history h JOIN cells c USING (fingerprint) WHERE h.is_current
    """).fetchall()
    found = {}
    for label, text in rows:
        try:
            settings = json.loads(text)
            said = STRATEGIES.get(settings.pop("name"))(**settings).exact()
        except (KVFrontierError, ImportError, ValueError, TypeError, LookupError, AttributeError):
            continue  # rows come from anywhere, and from other versions
        if said:
            found[label] = said
    return found
