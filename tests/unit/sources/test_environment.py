"""Environments are made whole or not at all, once, and read without importing any of them. Real pip, no network."""

import subprocess
import sys

import pytest
from fake_environment import LIBRARY, PACKAGES, VERSION, FakeEnvironment, write_wheel
from kvfrontier.errors import KVFrontierError, Unavailable, Unsupported
from kvfrontier.plan import environment as environments
from kvfrontier.plan.environment import STAMP, Environment
from kvfrontier.plan.fingerprint import package_version
from kvfrontier.sources import environment as making
from kvfrontier.sources.environment import make


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = FakeEnvironment(tmp_path)
    monkeypatch.setattr(environments, "PINS", fake.pins)
    for name, value in fake.variables.items():
        monkeypatch.setenv(name, value)
    return fake


def python_of_a_shell(environment):
    """What Ray's shell starts."""
    program = f"exec {environment.for_a_shell()} -c 'import sys; print(sys.executable)'"
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True).stdout.strip()


def test_it_is_made_once_and_told_by_its_files(fake, monkeypatch, caplog):
    environment = Environment("fake")
    assert package_version(f"fake/{LIBRARY}") == "not installed"
    with pytest.raises(Unsupported, match=r"environment 'fake' is missing: kvfrontier env make fake"):
        environment.require()
    with caplog.at_level("INFO", logger="kvfrontier"):
        assert make(environment) == environment.folder
    assert "installing 1 packages" in caplog.text
    environment.require()
    assert environment.python.is_file() and environment.folder.parent == fake.cache / "envs"
    assert package_version(f"fake/{LIBRARY}") == VERSION and package_version(LIBRARY) == "not installed"
    assert package_version("fake/nonsense") == "not installed"
    assert [found.name for found in environments.environments()] == ["fake"]

    assert python_of_a_shell(environment) == str(environment.python)

    monkeypatch.setattr(making.subprocess, "Popen", None)
    make(environment)  # nothing is run
    fake.pin(f"{LIBRARY}=={VERSION}", "# other pins")
    assert not environment.is_made, "other pins are another environment"


def test_a_script_finishes_it_and_belongs_to_what_it_is_made_from(fake):
    environment = Environment("fake")
    before = environment.folder
    script = 'pip uninstall --quiet --yes fakelib\npython -c \'import sys; open(sys.prefix + "/told", "w")\'\n'
    write_wheel(fake.wheels, "lender", "1.0", {"lender.pth": f"{PACKAGES}\n"})
    fake.pin(f"{LIBRARY}=={VERSION}", "lender==1.0")
    (fake.pins / "fake.post-deploy.sh").write_text(script)
    assert environment.folder != before
    make(environment)
    assert (environment.folder / "told").exists() and environment.version(LIBRARY) == "not installed"
    assert environment.version("lender") == "1.0"

    (fake.pins / "fake.post-deploy.sh").write_text("echo half a word >&2\nfalse\n")
    with pytest.raises(Unavailable, match=r"could not be made. It said:[\s\S]*half a word"):
        make(environment)
    assert not environment.folder.exists()


def test_where_it_is_missing_a_shell_starts_this_python_and_the_worker_says_so(fake):
    assert python_of_a_shell(Environment("fake")) == sys.executable
    environments.require_here("core")
    with pytest.raises(Unavailable, match="environment 'fake' is missing: kvfrontier env make fake"):
        environments.require_here("fake")


def test_what_was_left_half_is_made_again(fake):
    environment = Environment("fake")
    environment.folder.mkdir(parents=True)
    (environment.folder / "rest").touch()
    (environment.folder / STAMP).write_text(environment.digest[:10])
    assert not environment.is_made
    make(environment)
    assert environment.is_made and not (environment.folder / "rest").exists()


def test_a_failure_is_told_in_pips_words_and_leaves_nothing(fake):
    fake.pin("nobody-has-this==1.0")
    with pytest.raises(Unavailable, match=r"'fake' could not be made. It said:[\s\S]*nobody-has-this==1.0"):
        make(Environment("fake"))
    assert list((fake.cache / "envs").iterdir()) == []


def test_pins_that_no_worker_could_start_with_are_refused(fake):
    write_wheel(fake.wheels, "empty", "1.0")
    fake.pin("empty==1.0")
    with pytest.raises(Unavailable, match="No module named"):
        make(Environment("fake"))
    write_wheel(fake.wheels, "ray", "0.1")
    fake.pin(f"{LIBRARY}=={VERSION}", "ray==0.1")
    with pytest.raises(KVFrontierError, match=r"fake.txt pins ray 0.1, this Python has .*they must be the same"):
        make(Environment("fake"))
    assert list((fake.cache / "envs").iterdir()) == []
