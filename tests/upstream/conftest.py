"""A stand-in checkout and images, made once a session where nothing changes them."""

import pytest
from helpers.images import make_images
from upstream_helpers import make_standin


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"), size=(10, 12))


@pytest.fixture(scope="session")
def pilot(tmp_path_factory):
    return make_standin(tmp_path_factory.mktemp("pilot"))
