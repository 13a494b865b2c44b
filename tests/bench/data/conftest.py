"""What tests of several files share."""

import pytest

from .files import STORES, save
from .wheels import index

__all__ = ["index", "npz", "store"]


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return lambda arrays: save(tmp_path / request.param, arrays)


@pytest.fixture
def npz(tmp_path):
    return lambda arrays: save(tmp_path / "mine.npz", arrays)
