"""Secrets of the environment and of URLs reach no row, database, report or log, even where an error quotes them."""

from __future__ import annotations

import json

import duckdb
import pyarrow.parquet as pq
import pytest
import yaml
from kvfrontier.store.rows import read_table
from workspace import Workspace

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(300)]
SECRETS = {
    "HF_TOKEN": "hf_a1-secret-of-mine",
    "AWS_SECRET_ACCESS_KEY": "aws/b2+secret+of+mine",
    "RAY_AUTH_TOKEN": "c3" * 32,
    "PIP_INDEX_URL": "https://me:d4-secret-of-mine@index.example/simple",
    "KVFRONTIER_TEST_LOGIN": "e5-secret-of-mine",
}
NEEDLES = (*SECRETS.values(), "secret-of-mine", "secret+of+mine")
LOGIN = "f6-secret-of-mine"


class Secretive(Workspace):
    """A workspace whose processes know secrets."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **SECRETS}


def texts(space: Workspace):
    """(name, text) of everything a run leaves, packed files unpacked."""
    yield "rows", str(read_table(space.results)[0].to_pylist())
    yield "plan", str(pq.read_table(space.results / "plan" / "cells.parquet").to_pylist())
    with duckdb.connect(space.results / "trial.duckdb", read_only=True) as connection:
        for (table,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            yield table, str(connection.execute(f"FROM {table}").fetchall())
    for path in space.root.rglob("*"):
        if path.is_file() and not path.is_relative_to(space.root / "config"):
            yield str(path.relative_to(space.root)), path.read_bytes().decode(errors="replace")


def test_no_secret_is_kept(tmp_path):
    space = Secretive(tmp_path)
    space.campaign({"workload": [{"name": "blab", "fails": fails} for fails in (True, False)]}, max_attempts=1)
    run = space.snakemake("results/trial/trial.duckdb", "results/trial/report.html")
    assert run.returncode == 0, run.stdout
    kept = dict(texts(space))
    assert "401 Client Error for https://***@hub.example/x" in kept["rows"], "the error itself is told"
    assert any(name.endswith(".log") and "401 Client Error" in text for name, text in kept.items())
    assert {"report.html"} <= {name.rpartition("/")[2] for name in kept}
    leaks = [
        (name, needle) for name, text in {**kept, "output": run.stdout}.items() for needle in NEEDLES if needle in text
    ]
    assert not leaks

    failed = next(row for row in read_table(space.results)[0].to_pylist() if row["status"] == "error")
    again = space.run("kvfrontier", "rerun", failed["fingerprint"])
    assert again.returncode == 0 and "Reproduced." in again.stdout, again.stdout
    models = {"leaky": {"folder": f"https://me:{LOGIN}@hub.example/model"}}
    (space.root / "config" / "models.yaml").write_text(yaml.safe_dump(models))
    space.campaign({"model": ["leaky"], "workload": [{"name": "blab"}]})
    planned, dry = space.run("kvfrontier", "plan", "trial"), space.snakemake("-n")
    assert "hub.example/model" in planned.stdout and planned.returncode != 0
    logs = [path.read_text() for path in (space.root / ".snakemake" / "log").glob("*")]
    for text in (again.stdout, planned.stdout, dry.stdout, *logs):
        assert not [needle for needle in (*NEEDLES, LOGIN) if needle in text], text
    assert json.loads(dict(failed["provenance"])["model_entry"]), "what a rerun needs is there all the same"
