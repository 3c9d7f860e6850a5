import pytest
from fuzz_world import make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))
