"""What the fault tests share."""

import pytest
from faults import Lives, Trial


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The campaign of a plain `Trial`, run once and undisturbed."""
    trial = Trial(tmp_path_factory.mktemp("reference"))
    trial.lives = Lives()
    trial.lives.run(trial, "results/trial/trial.duckdb")
    trial.check()
    yield trial
    trial.close()
