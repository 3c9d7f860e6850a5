import pytest
from model_helpers import Workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("workspace"))
