"""The paper's main table: every method on one data set, under equal budgets.

Each modality alone, joint training by every fusion that a method brings, every competitor, and
joint training with VCMM.
"""

from __future__ import annotations

from ..spec import Spec
from .budget import Name, within
from .compare import compare
from .grid import Base


def table1(
    base: Base,
    *,
    budget: Name = "small",
    seeds: int | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
) -> list[Spec]:
    """The main table: every modality alone, joint training, all methods, and VCMM."""
    base, count = within(base, budget, seeds, epochs, batch_size)
    return compare(
        base, methods=everyone(), seeds=count, epochs=base["epochs"], batch_size=batch_size
    )


def everyone() -> tuple[str, ...]:
    """All arms of the table but the references."""
    from ..methods import METHODS

    return (*sorted(METHODS.keys() - {"joint", "unimodal"}), "joint+vcmm")
