"""The demo: what VCMM does on real data, in a few minutes on two cores."""

from __future__ import annotations

from ..spec import Spec
from .compare import compare
from .grid import Base


def demo(base: Base, *, seeds: int = 3, epochs: int = 15, batch_size: int = 64) -> list[Spec]:
    """Every modality alone, joint and multi-loss training, and both of them with VCMM."""
    methods = ("multi_loss", "joint+vcmm", "multi_loss+vcmm")
    return compare(base, methods=methods, seeds=seeds, epochs=epochs, batch_size=batch_size)
