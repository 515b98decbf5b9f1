"""The row of a cell, whoever writes it: the runner, the driver for a worker that died, or the plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kvfrontier.errors import printable
from kvfrontier.metrics import Measurement
from kvfrontier.run.redact import redact, secrets

if TYPE_CHECKING:
    from kvfrontier.plan.planned import PlannedCell

REASON_CHARS = 500


def outcome_row(
    planned: PlannedCell,
    attempt: int,
    status: str,
    *,
    reason: str = "",
    reason_class: str = "",
    phase: str = "",
    detail: str = "",
    asked_bytes: int | None = None,
    started_at: datetime | None = None,
    wall_s: float | None = None,
    achieved_budget: float | None = None,
    provenance: Mapping[str, str] | None = None,
    measurements: Iterable[Measurement] = (),
) -> dict[str, Any]:
    """A row in the shape of `store.schema.ROW`. `reason` is cut to one line; `detail` holds the traceback.

    Texts that come from outside (messages, provenance) are kept without secrets.
    """
    known = secrets()
    return {
        "cell_id": planned.cell_id,
        "fingerprint": planned.fingerprint,
        "parts": dict(planned.parts),
        "cell": json.dumps(planned.cell.as_dict(), sort_keys=True),
        "status": status,
        "reason": printable(" ".join(redact(reason, known).split()))[:REASON_CHARS] or None,
        "reason_class": reason_class or None,
        "reason_phase": phase or None,
        "reason_detail": printable(redact(detail, known)) or None,
        "reason_bytes": asked_bytes,
        "achieved_budget": achieved_budget,
        "source": planned.source,
        "attempt": attempt,
        "started_at": started_at or datetime.now(UTC),
        "wall_s": wall_s,
        "provenance": {name: redact(value, known) for name, value in (provenance or {}).items()},
        "measurements": list(measurements),
    }
