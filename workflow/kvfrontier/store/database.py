"""Build `results/<campaign>/<campaign>.duckdb` from the plan and the rows: aside, then published by rename."""

from __future__ import annotations

import logging
import os
import tempfile
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa

from kvfrontier.errors import Unavailable
from kvfrontier.metrics import METRICS
from kvfrontier.plan.disk import read_cells
from kvfrontier.store.columns import build_parameters
from kvfrontier.store.files import explained
from kvfrontier.store.quantiles import NORMAL_975, TABULATED, t_table
from kvfrontier.store.rows import read_table

log = logging.getLogger(__name__)


def database_path(campaign_dir: Path) -> Path:
    """Where the published database of a campaign lies."""
    return campaign_dir / f"{campaign_dir.name}.duckdb"


def build_database(campaign_dir: Path) -> Path:
    """Join every planned cell with its stored row and publish the result; readers of the old file are not disturbed.

    Damaged row files are skipped, counted, named in the log and in the table `damaged_files`.
    Raises Unavailable where the campaign has no plan yet, or the folder cannot be written.
    """
    plan = read_cells(campaign_dir)
    rows, damaged = read_table(campaign_dir)
    for name in damaged:
        log.warning("skipped a damaged row file: %s", name)
    published = database_path(campaign_dir)
    # In the same folder: a rename across file systems is not atomic.
    with explained(published), tempfile.TemporaryDirectory(dir=campaign_dir, prefix=".building-") as aside:
        built = Path(aside) / published.name
        try:
            with duckdb.connect(built) as connection:
                fill(connection, plan, rows, damaged)
        except duckdb.IOException as error:  # a full disk, mostly: DuckDB has its own errors for the file system's
            raise Unavailable(f"cannot write {published}: {error}") from error
        os.replace(built, published)
    log.info("%s: %d cells, %d rows, %d damaged files", published, plan.num_rows, rows.num_rows, len(damaged))
    return published


def fill(connection: duckdb.DuckDBPyConnection, plan: pa.Table, rows: pa.Table, damaged: list[str]) -> None:
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
