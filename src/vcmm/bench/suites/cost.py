"""What a method costs: memory and time of training, absolute and over joint training.

The arms are those of the main table that train all modalities, with the same specs, so that what
was trained for it counts here. Times are what a machine had to give: with several workers they are
of runs that shared it, so `--workers 1` on a quiet machine makes the better numbers. Memory is that
of two steps by themselves, and does not depend on it.
"""

from __future__ import annotations

from ..spec import Spec
from .budget import Name
from .grid import Base
from .table1 import table1


def cost(
    base: Base,
    *,
    budget: Name = "small",
    seeds: int | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
) -> list[Spec]:
    """Memory and time of training: all methods beside joint training."""
    whole = table1(base, budget=budget, seeds=seeds, epochs=epochs, batch_size=batch_size)
    return [spec for spec in whole if spec.method.name != "unimodal"]
