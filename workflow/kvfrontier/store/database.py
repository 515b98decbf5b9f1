"""Build `results/<campaign>/<campaign>.duckdb` from the plan and the rows: aside, then published by rename."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa

from kvfrontier.errors import Unavailable
from kvfrontier.metrics import METRICS
from kvfrontier.plan.against import stored_against
from kvfrontier.plan.disk import read_cells
from kvfrontier.store.attempts import newest_of
from kvfrontier.store.columns import build_parameters
from kvfrontier.store.files import explained
from kvfrontier.store.heartbeat import drivers_key
from kvfrontier.store.newest import plan_key, rows_key
from kvfrontier.store.progress import Estimator, ShardProgress, progress_table, shard_progress
from kvfrontier.store.quantiles import NORMAL_975, TABULATED, t_table
from kvfrontier.store.rows import read_table

log = logging.getLogger(__name__)


def database_path(campaign_dir: Path) -> Path:
    """Where the published database of a campaign lies."""
    return campaign_dir / f"{campaign_dir.name}.duckdb"


def live_path(campaign_dir: Path) -> Path:
    """Where a database of a campaign that still runs lies (see `store.live`)."""
    return campaign_dir / f"{campaign_dir.name}.live.duckdb"


def build_database(campaign_dir: Path, published: Path | None = None, estimate: Estimator | None = None) -> Path:
    """Join every planned cell with its stored row and publish the result; readers of the old file are not disturbed.

    Damaged row files are skipped, counted, named in the log and in the table `damaged_files`.
    published: where to, `database_path` without. estimate: how long each planned cell takes, for the time left.
    Raises Unavailable where the campaign has no plan yet, or the folder cannot be written.
    """
    made_at, start_s = datetime.now(UTC), time.monotonic()
    plan = read_cells(campaign_dir)
    # Before the rows: what comes meanwhile makes it outdated.
    keys = plan_key(campaign_dir), rows_key(campaign_dir), drivers_key(campaign_dir)
    rows, damaged = read_table(campaign_dir)
    progress = shard_progress(campaign_dir, plan, newest_of([rows]), estimate or (lambda: None))
    for name in damaged:
        log.warning("skipped a damaged row file: %s", name)
    published = published or database_path(campaign_dir)
    # In the same folder: a rename across file systems is not atomic.
    with explained(published), tempfile.TemporaryDirectory(dir=published.parent, prefix=".building-") as aside:
        built = Path(aside) / published.name
        try:
            with duckdb.connect(built) as connection:
                connection.execute("SET enable_external_access = false")  # nothing in a row may name a file
                fill(connection, plan, rows, damaged, progress, stored_against(campaign_dir))
                made = (campaign_dir.name, made_at.replace(tzinfo=None), time.monotonic() - start_s, len(rows), *keys)
                connection.execute("INSERT INTO build VALUES (?, ?, ?, ?, ?, ?, ?)", made)
                connection.execute("CHECKPOINT")  # on a full disk closing would leave that out without a word
            with built.open("rb") as file:
                os.fsync(file.fileno())
        except (duckdb.IOException, duckdb.FatalException) as error:  # DuckDB has its own for a full disk
            raise Unavailable(f"cannot write {published}: {str(error).partition(chr(10))[0]}") from error
        except duckdb.Error as error:  # the plan is of another version, or not ours
            advice = f"remove {campaign_dir / 'plan'}; `kvfrontier plan {campaign_dir.name}` makes it again"
            raise Unavailable(f"{published} cannot be made of plan and rows ({error}); {advice}") from error
        os.replace(built, published)
    if published == database_path(campaign_dir):
        live_path(campaign_dir).unlink(missing_ok=True)  # it has nothing that this one lacks
    log.info("%s: %d cells, %d rows, %d damaged files", published, plan.num_rows, rows.num_rows, len(damaged))
    return published


def fill(
    connection: duckdb.DuckDBPyConnection,
    plan: pa.Table,
    rows: pa.Table,
    damaged: list[str],
    progress: Iterable[ShardProgress] = (),
    against: list[str] | None = None,
) -> None:
    """Create all tables, with their comments, in an empty database."""
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("plan_arrow", plan)
    connection.execute("CREATE TEMP TABLE planned AS FROM plan_arrow")
    # Times are plain UTC: TIMESTAMP WITH TIME ZONE needs an extra package in Python and shows local time elsewhere.
    started_at = rows["started_at"].cast(pa.timestamp("us"))
    rows = rows.set_column(rows.schema.get_field_index("started_at"), "started_at", started_at)
    connection.register("rows_arrow", rows)
    connection.execute("CREATE TEMP VIEW stored AS FROM rows_arrow")
    connection.register("metrics_arrow", _metrics_table())
    connection.execute("CREATE TABLE metrics AS FROM metrics_arrow")
    connection.register("damaged_arrow", pa.table({"file": pa.array(damaged, pa.string())}))
    connection.execute("CREATE TABLE damaged_files AS FROM damaged_arrow")
    connection.register("progress_arrow", progress_table(progress))
    connection.execute("CREATE TABLE progress AS FROM progress_arrow")
    connection.register("against_arrow", pa.table({"reference": pa.array(against or [], pa.string())}))
    connection.execute("CREATE TABLE against AS FROM against_arrow")
    connection.execute(_t_quantile_macro())
    parameter_comments = build_parameters(connection)
    sql = files("kvfrontier.store")
    connection.execute(sql.joinpath("views.sql").read_text())
    connection.execute(sql.joinpath("comments.sql").read_text())
    for column, comment in parameter_comments.items():
        connection.execute(f"""COMMENT ON COLUMN cells."{column}" IS '{comment.replace("'", "''")}'""")


def _metrics_table() -> pa.Table:
    names = ("name", "unit", "better", "kind", "role", "meaning")
    columns = {name: [getattr(metric, name) for metric in METRICS.values()] for name in names}
    return pa.table(columns).rename_columns(["metric", *names[1:]])


def _t_quantile_macro() -> str:
    """Exact for small df; beyond, the expansion of t in 1/df around the normal one (Abramowitz & Stegun 26.7.5)."""
    z = NORMAL_975
    terms = [(z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384]
    series = " + ".join(f"{term!r}::DOUBLE / df ** {power}" for power, term in enumerate(terms, start=1))
    return (
        f"CREATE MACRO t_quantile_975(df) AS CASE WHEN df < 1 THEN NULL WHEN df <= {TABULATED} "
        f"THEN ({t_table()!r}::DOUBLE[])[df] ELSE {z!r}::DOUBLE + {series} END"
    )
