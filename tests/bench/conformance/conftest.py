"""What makes these many small trainings quick."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from .. import toys


@pytest.fixture(scope="package", autouse=True)
def _few_objects() -> Iterator[None]:
    toys.warm()
    yield
    gc.unfreeze()
