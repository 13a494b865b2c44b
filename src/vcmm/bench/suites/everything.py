"""All suites of the paper, one after the other. What two of them ask for is trained once."""

from __future__ import annotations

from .ablation import ablation
from .budget import Name
from .cost import cost
from .dynamics import dynamics
from .grid import Base
from .sensitivity import sensitivity
from .stages import Asked, Stages, staged
from .table1 import table1


def everything(
    base: Base,
    *,
    budget: Name = "small",
    seeds: int | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
) -> Stages:
    """The suites table1, ablation, cost, sensitivity and dynamics."""
    suites = (table1, ablation, cost, sensitivity, dynamics)
    for suite in suites:
        asked: Asked = suite(base, budget=budget, seeds=seeds, epochs=epochs, batch_size=batch_size)
        yield from staged(asked)
