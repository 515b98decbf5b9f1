"""Which strategies lose nothing by their own declaration, and where: what no measurement could have found to differ."""

from __future__ import annotations

import json

import duckdb

from kvfrontier.errors import KVFrontierError
from kvfrontier.metrics import LOG_LIKELIHOOD, RETENTION_CORRECT, RETENTION_MARGIN
from kvfrontier.registry import STRATEGIES

READINGS, ALWAYS = "readings", "always"
"""As `Strategy.exact` says it."""
FORCED_CHOICE = (RETENTION_CORRECT, RETENTION_MARGIN)
FEED = "workload_feed"
"""Column of `cells`, where any workload of the campaign has the parameter."""


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


def readings(connection: duckdb.DuckDBPyConnection) -> set[tuple[str, str]]:
    """(workload_label, metric) of what is asked without a decode step: question and answers are read like a prompt.

    So it is with `feed: block` (the default) in a forced choice, and in a task whose answers are compared by their
    likelihood. Answers that are written are decoded, whatever `feed` says.
    """
    feed = FEED if FEED in connection.table("cells").columns else "NULL"
    rows = connection.execute(
        f"""
        SELECT DISTINCT workload_label, metric FROM measurements JOIN cells USING (cell_id)
        WHERE coalesce({feed}::VARCHAR, 'block') = 'block' AND (list_contains($forced_choice, metric)
          OR workload = 'lm_eval' AND cell_id IN (SELECT cell_id FROM measurements WHERE metric = $likelihood))
        """,
        {"forced_choice": list(FORCED_CHOICE), "likelihood": LOG_LIKELIHOOD},
    ).fetchall()
    return set(rows)
