"""How the Slurm profile asks after its jobs, on sites of all kinds: each a folder with commands that answer so."""

import getpass

import pytest
from kvfrontier.errors import Unavailable
from kvfrontier.run import slurm_site
from kvfrontier.run.slurm_job import slurm_job
from kvfrontier.run.slurm_site import longest_minutes, status_command

CONFIG = """
AccountingStorageHost   = db
AccountingStorageType   = accounting_storage/{storage}
ClusterName             = farm
MinJobAge               = {age}
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Makes commands of a site; nothing else is found on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_site, "TIMEOUT_S", 1)
    status_command.cache_clear()

    def make(storage="none", age="300 sec", scontrol=None, sacct="exit 1"):
        config = scontrol or f"cat <<'END'\n{CONFIG.format(storage=storage, age=age)}\nEND"
        for name, script in (("scontrol", config), ("sacct", sacct)):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)

    yield make
    status_command.cache_clear()


def test_accounting_that_answers_is_used(site, tmp_path):
    site("slurmdbd", sacct=f'echo "$@" >{tmp_path}/asked')
    assert status_command() == "sacct"
    assert getpass.getuser() in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("sacct", ["exit 1", "exec sleep 20"], ids=["fails", "hangs"])
def test_accounting_that_is_set_up_and_does_not_answer_is_not_waited_for(site, sacct):
    site("slurmdbd", sacct=sacct)
    assert status_command() == "squeue"


def test_without_accounting_sacct_is_not_even_asked(site):
    site("none", sacct="exit 0")
    assert status_command() == "squeue"


@pytest.mark.parametrize("age", ["60 sec", "239 sec", "(null)"])
def test_where_neither_can_be_relied_upon_nothing_is_submitted_and_the_way_out_is_told(site, age):
    site("none", age=age)
    with pytest.raises(Unavailable, match=r"cluster 'farm' has no accounting .* MinJobAge=240 .*kvfrontier measure"):
        status_command()


def test_a_machine_without_slurm_is_told_apart(monkeypatch, tmp_path):
    status_command.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"no Slurm on this machine.*profiles/local"):
        status_command()


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"), ("exec sleep 20", "timed out")],
)
def test_a_controller_that_does_not_answer_is_named(site, script, words):
    site(scontrol=script)
    with pytest.raises(Unavailable, match=rf"Slurm does not answer: .*{words}.*Nothing was submitted"):
        status_command()


def test_the_time_limits_of_partitions(site, tmp_path):
    site()
    (tmp_path / "sinfo").write_text(
        "#!/bin/sh\nprintf 'gpu*|2-01:00:00\\nbrief|10:00\\nlong|infinite\\nnight|12:30:00\\n'\n"
    )
    (tmp_path / "sinfo").chmod(0o755)
    slurm_site._time_limits.cache_clear()
    limits = {name: longest_minutes(name) for name in (None, "gpu", "brief", "long", "night", "night,brief", "unknown")}
    assert limits == {
        None: 2940, "gpu": 2940, "brief": 10, "long": None, "night": 750, "night,brief": 10, "unknown": None,
    }  # fmt: skip
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    slurm_site._time_limits.cache_clear()
    assert longest_minutes("brief") is None
    slurm_site._time_limits.cache_clear()


def test_a_job_knows_its_log(site, monkeypatch):
    site(
        scontrol="""
        echo '   Requeue=1 Restarts=2 BatchFlag=1'
        echo '   StdErr=/logs/17.err'
        echo '   StdOut=/logs/my job/17.log'"""
    )
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    told = slurm_job()
    assert told.startswith("Slurm job 17 on n3; ") and "restarts: 2" in told and told.endswith(": /logs/my job/17.log")
    site(scontrol="exit 1")
    assert slurm_job() == "Slurm job 17 on n3"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert slurm_job() == ""
