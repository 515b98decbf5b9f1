"""The synthetic campaign, published once for all tests of store, analysis and reports."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def synthetic_campaign(tmp_path_factory) -> Path:
    """Folder of the campaign's results, database included."""
    from kvfrontier.store.database import build_database
    from synthetic import write_campaign

    folder = write_campaign(tmp_path_factory.mktemp("results"))
    build_database(folder)
    return folder


@pytest.fixture
def connection(synthetic_campaign):
    """Read-only connection to it."""
    from kvfrontier.store.query import open_database

    with open_database(synthetic_campaign) as opened:
        yield opened
