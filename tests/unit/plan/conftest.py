import pytest
from toy_project import ToyProject, toy_plugins


@pytest.fixture
def toys(tmp_path):
    with toy_plugins():
        yield ToyProject(tmp_path)
