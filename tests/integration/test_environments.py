"""Ray runs an engine's cells with its own environment's Python: made later, gone again. Real Ray."""

from __future__ import annotations

import pytest
from fake_environment import LIBRARY, VERSION
from two_pythons import RECIPE, SENTENCE, TwoPythons

pytestmark = [pytest.mark.workflow, pytest.mark.ray, pytest.mark.timeout(900)]


def test_cells_wait_for_their_environment_and_then_run_with_its_python(tmp_path):
    space = TwoPythons(tmp_path)
    space.campaign({"engine": ["simulator", "elsewhere"], "workload": [{"name": "nap"}], "seed": [0]})
    space.measure()
    missing = space.row("elsewhere", 0)
    assert (missing["status"], missing["reason"]) == ("unsupported", SENTENCE)
    assert f"cells of its engine are unsupported: {RECIPE}" in space.run("kvfrontier", "doctor").stdout

    assert f"environment fake: {space.fake.cache}" in space.run("kvfrontier", "env", "make", "fake").stdout
    told = space.measure()
    there, here = space.row("elsewhere", 0), space.row("simulator", 0)
    assert there["status"] == "ok", told
    assert there["provenance"]["environment"].startswith("fake-") and there["provenance"][LIBRARY] == VERSION
    assert "environment" not in here["provenance"] and LIBRARY not in here["provenance"]
    assert space.naps_taken().total() == 2, "the other engine's cell was measured again"
    again = space.run("kvfrontier", "rerun", there["fingerprint"])
    assert again.returncode == 0 and "\nReproduced." in again.stdout, again.stdout

    # Planned with it, and gone when the worker starts: its Python is another one, which says so.
    space.campaign({"engine": ["elsewhere"], "workload": [{"name": "nap"}], "seed": [1]})
    assert space.run("kvfrontier", "plan", "trial").returncode == 0
    made = next((space.fake.cache / "envs").iterdir())
    made.rename(space.root / made.name)
    told = space.measure_shards()
    gone = space.row("elsewhere", 1)
    assert (gone["status"], gone["reason"]) == ("error", SENTENCE), told


def test_the_command_knows_its_names(tmp_path):
    space = TwoPythons(tmp_path)
    told = space.run("kvfrontier", "env", "make", "fakes")
    assert told.returncode == 2 and "Did you mean 'fake'?" in told.stdout and "Traceback" not in told.stdout
    assert space.run("kvfrontier", "env").stdout == f"fake: not made: {RECIPE}\n"
