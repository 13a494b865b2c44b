"""Every figure of the report, one per file, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable

from ..figure import Figure, Source
from .differences import differences
from .imbalance import imbalance
from .learning import learning
from .memory import memory
from .momentum import momentum
from .ratio import ratio
from .time import time

# Each gives None where the records have nothing to show.
FIGURES: tuple[Callable[[Source], Figure | None], ...] = (
    differences,
    imbalance,
    learning,
    momentum,
    ratio,
    time,
    memory,
)
