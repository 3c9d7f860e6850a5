import pytest
from fuzz_helpers import make_workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("workspace"))
