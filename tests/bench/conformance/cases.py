"""Which methods are tested on what, and what is known of some of them."""

from __future__ import annotations

import pytest

from vcmm.bench.controllers import CONTROLLERS
from vcmm.bench.methods import METHODS

SHAPES = [(number, kind) for kind in ("vector", "sequence", "image") for number in (2, 3, 6)]

every_method = pytest.mark.parametrize("name", sorted(METHODS))
every_controller = pytest.mark.parametrize("controller", sorted(CONTROLLERS))
every_number = pytest.mark.parametrize("modalities", [2, 3, 6])
every_shape = pytest.mark.parametrize(
    ("modalities", "kind"), SHAPES, ids=[f"{kind}-{number}" for number, kind in SHAPES]
)
