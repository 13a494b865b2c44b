"""Fusions by name."""

from __future__ import annotations

from .aligned import Aligned
from .boosted import Boosted
from .branches import Branches
from .fusion import Fusion
from .gated import FiLM, Gated
from .growing import Growing
from .linear import Concat, Mean, Sum
from .shared import Shared

FUSIONS: dict[str, type[Fusion]] = {
    "aligned": Aligned,
    "boosted": Boosted,
    "branches": Branches,
    "concat": Concat,
    "film": FiLM,
    "gated": Gated,
    "growing": Growing,
    "mean": Mean,
    "shared": Shared,
    "sum": Sum,
}
