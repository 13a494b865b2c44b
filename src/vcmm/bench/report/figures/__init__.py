"""Every figure of the report, one per file, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable

from ..figure import Figure, Source
from .budget import budget
from .differences import differences
from .encoder import encoder
from .heat import heat
from .imbalance import imbalance
from .learning import learning
from .memory import memory
from .momentum import momentum
from .ratio import ratio
from .sensitivity import sensitivity
from .strength import strength
from .time import time
from .validation import validation

# Each gives None where the records have nothing to show.
FIGURES: tuple[Callable[[Source], Figure | None], ...] = (
    differences,
    imbalance,
    learning,
    validation,
    momentum,
    ratio,
    encoder,
    heat,
    strength,
    sensitivity,
    time,
    memory,
    budget,
)
