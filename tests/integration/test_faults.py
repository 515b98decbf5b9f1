"""`kill -9` at random instants and at exact places: no row lost, half or twice, and the next run ends well.

KVFRONTIER_FAULTS: instants for each victim; KVFRONTIER_FAULT_SEED: which ones.
"""

import logging
import random
from collections import Counter

import pytest
from faults import FAULTS, SEED, Executioner, Trial, trials, trouble

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600 + 120 * FAULTS)]
DATABASE = "results/trial/trial.duckdb"
BLOWS = 5
"""So many in a row on one campaign before it may finish."""
VICTIMS = ("snakemake", "driver", "raylet")
PLACES = [
    # event, path, how often before: each file that is written, in the order of a run
    ("os.rename", "results/trial/plan/cells.parquet", 1),
    ("os.rename", "results/trial/plan/index.json", 1),
    ("os.rename", "results/trial/plan/published.json", 1),
    ("open", "results/trial/cells/*/.*.tmp", 3),
    ("os.rename", "results/trial/cells/*/*.parquet", 5),
    ("os.rename", "results/trial/running/*.json", 2),
    ("os.rename", "results/trial/store/*.parquet", 1),
    ("os.remove", "results/trial/cells/*/*.parquet", 1),
    ("os.remove", "results/trial/cells/*/*.parquet", 7),
    ("os.rename", "results/trial/ledgers/*.json", 1),
    ("os.remove", "results/trial/running/*.json", 1),
    ("os.rename", "results/trial/trial.duckdb", 1),
    ("open", "results/trial/.*report.html.*.tmp", 1),
    ("os.rename", "results/trial/report.html", 1),
    ("os.rename", "results/trial/verdict.txt", 1),
]


def tell(phases, trial):
    """For whoever runs the whole of it, with --log-cli-level=WARNING."""
    logging.getLogger(__name__).warning(
        "killed %d times, %s; gone in %.1f s; seed %s", phases.total(), dict(phases), trial.slowest_s, SEED
    )


@pytest.mark.timeout(600 + 360 * FAULTS)
def test_killed_at_any_instant_all_end_and_the_next_run_goes_on(reference, tmp_path):
    """The victims take turns; a campaign finishes after some blows, or when a run was over before its blow."""
    chance, due, phases = random.Random(f"{SEED} instants"), Counter(dict.fromkeys(VICTIMS, FAULTS)), Counter()
    executioners = {victim: Executioner(victim, reference.lives) for victim in VICTIMS}
    for trial in trials(tmp_path):
        targets = [] if chance.random() < 0.3 else [DATABASE]
        while due.total() and trial.kills < BLOWS:
            victim = max(VICTIMS, key=due.get)
            if not executioners[victim].strike(trial, chance, *targets):
                break
            due[victim] -= 1
            tell(trial.phases, trial)
            trial.vanishes()
            trial.check()
        trial.finish(reference, *targets, lives=reference.lives)
        phases += trial.phases
        tell(phases, trial)
        if not due.total():
            break


def test_a_worker_killed_at_any_instant_is_replaced_and_the_run_ends_well(reference, tmp_path):
    chance, phases = random.Random(f"{SEED} worker"), Counter()
    executioner = Executioner("worker", reference.lives)
    for trial in trials(tmp_path):
        executioner.strike(trial, chance, DATABASE, blows=min(3, FAULTS - phases.total()))
        trial.check()
        if all(status in ("ok", "unsupported") for status, _ in trial.statuses()):
            trial.vanishes()
            trial.equals(reference)
        else:  # one cell met two blows: that is an error, until the next run
            trial.finish(reference, DATABASE)
        phases += trial.phases
        tell(phases, trial)
        if phases.total() >= FAULTS:
            break


def test_a_worker_killed_while_it_stores_the_rows_of_several_cells_is_replaced(reference, tmp_path):
    trial = Trial(tmp_path)
    try:
        token = tmp_path / "token"
        trial.extra = {
            "KVFRONTIER_TROUBLE": f"kill_worker|os.rename|{tmp_path}/results/trial/store/*.parquet|1|{token}"
        }
        run = trial.snakemake()
        assert token.exists() and run.returncode == 0, run.stdout
        trial.extra, trial.kills = {}, 1
        trial.vanishes()
        trial.check()
        trial.equals(reference)
    finally:
        trial.close()


def test_killed_at_the_exact_places_where_files_are_replaced(reference, tmp_path):
    chance, trial = random.Random(f"{SEED} places"), Trial(tmp_path)
    places = PLACES if len(PLACES) <= FAULTS else sorted(chance.sample(PLACES, FAULTS), key=PLACES.index)
    try:
        for place in places:
            assert trouble(trial, "kill", *place) is not None, f"nobody came by {place}; seed {SEED}"
            trial.vanishes()
            trial.check()
        trial.finish(reference)
    finally:
        trial.close()
