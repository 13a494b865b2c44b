"""Fusions by name."""

from __future__ import annotations

from .branches import Branches
from .fusion import Fusion
from .gated import FiLM, Gated
from .linear import Concat, Mean, Sum
from .shared import Shared

FUSIONS: dict[str, type[Fusion]] = {
    "branches": Branches,
    "concat": Concat,
    "film": FiLM,
    "gated": Gated,
    "mean": Mean,
    "shared": Shared,
    "sum": Sum,
}
