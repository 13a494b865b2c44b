"""What makes these many small trainings quick."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _few_objects() -> Iterator[None]:
    """Peak memory is measured after garbage was collected, which is slow with torch's imports."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
