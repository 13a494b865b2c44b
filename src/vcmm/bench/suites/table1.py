"""The paper's main table: every method on one data set, under equal budgets.

Each modality alone, joint training by every fusion that a method brings, every competitor, and
joint training with VCMM.
"""

from __future__ import annotations

from ..spec import Spec
from .compare import compare
from .grid import Base


def table1(base: Base, *, seeds: int = 5, epochs: int = 15, batch_size: int = 64) -> list[Spec]:
    """All methods."""
    from ..methods import METHODS

    others = sorted(METHODS.keys() - {"joint", "unimodal"})
    methods = (*others, "joint+vcmm")
    return compare(base, methods=methods, seeds=seeds, epochs=epochs, batch_size=batch_size)
