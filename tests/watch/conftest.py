import pytest
from helpers.images import make_images


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))
