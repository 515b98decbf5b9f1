"""Which database answers now: the published one, or, while it lacks rows, one made from the rows and kept for a while.

The published file is Snakemake's and is not touched here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import duckdb

from kvfrontier.errors import Unavailable
from kvfrontier.store.database import build_database, database_path, live_path
from kvfrontier.store.heartbeat import drivers_key
from kvfrontier.store.newest import plan_key, rows_key
from kvfrontier.store.progress import Estimator, Totals
from kvfrontier.store.query import open_database
from kvfrontier.store.schema import STATUSES
from kvfrontier.units import format_seconds

Choice = Literal["auto", "fresh", "published"]
BUILDS_WORTH = 5
"""A live database is asked again for so many times what making it took: 0.3 s for 1.5 s, 16 s for 80 s."""
UNCHANGED_S = 60.0
"""And for at least so long where no row has come since."""


class Made(NamedTuple):
    """What a database says of its own making (its table `build`)."""

    made_at: datetime
    seconds: float
    plan_key: str
    rows_key: str
    drivers_key: str

    @property
    def age_s(self) -> float:
        """Of one from the future (the clock was set back) nobody knows: infinite."""
        age_s = (datetime.now(UTC) - self.made_at).total_seconds()
        return age_s if age_s >= 0 else float("inf")


class Answering(NamedTuple):
    """An open database. `remark`: which one it is and how old, or empty for one that is up to date."""

    connection: duckdb.DuckDBPyConnection
    made: Made | None
    remark: str

    def line(self, campaign: str) -> str:
        """`trial: 412 of 1,000 cells, ... (remark)`; empty where it is finished and the database up to date."""
        found = stored_totals(self.connection)
        if found is None or (found.is_finished and not self.remark):
            return ""
        return f"{campaign}: {found.words()}" + (f" ({self.remark})" if self.remark else "")


@contextmanager
def open_current(
    campaign_dir: Path,
    estimate: Estimator | None = None,
    choice: Choice = "auto",
    files: Mapping[str, Path] | None = None,
) -> Iterator[Answering]:
    """The database to ask. `fresh`: with every row there is now; `published`: whatever that holds. Unavailable."""
    with tempfile.TemporaryDirectory(prefix="kvfrontier-") as spare:
        path, remark = _choose(campaign_dir, estimate, choice, Path(spare))
        with open_database(campaign_dir, path, files) as connection:
            yield Answering(connection, _made(connection), remark)


def _choose(campaign_dir: Path, estimate: Estimator | None, choice: Choice, spare: Path) -> tuple[Path, str]:
    published, live = database_path(campaign_dir), live_path(campaign_dir)
    if choice == "published":
        return published, ""
    plan, rows, drivers = plan_key(campaign_dir), rows_key(campaign_dir), drivers_key(campaign_dir)
    made = _made_of(published)
    if made and made.rows_key == rows and not drivers:
        if made.plan_key == plan:
            return published, ""
        if choice == "auto":
            return published, "published for an earlier plan; --fresh asks for the present one"
    older = "the published database is older" if published.exists() else "nothing is published yet"
    kept = _made_of(live)
    if kept and choice == "auto" and kept.plan_key == plan:
        is_same = (kept.rows_key, kept.drivers_key) == (rows, drivers)
        if kept.age_s < _lasts_s(kept, is_same, bool(drivers)):
            return live, f"{older}; asked the rows as of {format_seconds(max(1, round(kept.age_s)))} ago"
    return _build(campaign_dir, live, spare, estimate), f"{older}; asked the rows themselves"


def _lasts_s(kept: Made, is_same: bool, is_running: bool) -> float:
    """`is_same`: neither a row nor a driver has come or gone since; what is in flight may have."""
    if is_same:
        return max(UNCHANGED_S, BUILDS_WORTH * kept.seconds) if is_running else float("inf")
    return BUILDS_WORTH * kept.seconds


def _build(campaign_dir: Path, live: Path, spare: Path, estimate: Estimator | None) -> Path:
    try:
        return build_database(campaign_dir, live, estimate)
    except Unavailable:  # results of somebody else, or a full disk: it then serves this one question
        return build_database(campaign_dir, spare / live.name, estimate)


def _made_of(path: Path) -> Made | None:
    """None where there is no database, or one that is damaged or does not say."""
    if not path.exists():
        return None
    try:
        with open_database(path.parent, path) as connection:
            return _made(connection)
    except Unavailable:
        return None


def _made(connection: duckdb.DuckDBPyConnection) -> Made | None:
    try:
        rows = connection.execute("SELECT made_at, seconds, plan_key, rows_key, drivers_key FROM build").fetchall()
    except duckdb.Error:  # made by an older version
        return None
    return Made(rows[0][0].replace(tzinfo=UTC), *rows[0][1:]) if rows else None


def stored_totals(connection: duckdb.DuckDBPyConnection) -> Totals | None:
    """How far the campaign was when the database was made; None where an older version made it."""
    columns = ", ".join(f"sum({name})::BIGINT" for name in ("planned", *STATUSES, "in_flight", "remaining"))
    try:
        found = connection.execute(
            f"SELECT {columns}, count(host), max(seconds_left) FILTER (host IS NOT NULL), "
            "CASE WHEN bool_and(seconds_left IS NOT NULL) THEN sum(seconds_left) END FROM progress"
        ).fetchall()[0]
    except duckdb.Error:
        return None
    if found[0] is None:
        return None
    cells, *counts, in_flight, remaining, running, longest, work_s = found
    seconds_left = None if work_s is None else max(longest or 0.0, work_s / max(1, running))
    by_status = {name: count for name, count in zip(STATUSES, counts, strict=True) if count}
    return Totals(cells, by_status, in_flight, remaining, seconds_left, running)
