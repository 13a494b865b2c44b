"""Every axis of a spec and the names that it can have, an explicit dict per axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def registry(axis: str) -> Mapping[str, Callable[..., Any]]:
    """The names of an axis. What they stand for is imported now, and not before."""
    from .controllers import CONTROLLERS
    from .data import DATA
    from .encoders import ENCODERS
    from .fusions import FUSIONS
    from .methods import METHODS
    from .optimizers import OPTIMIZERS
    from .schedules import SCHEDULES

    registries: dict[str, Mapping[str, Callable[..., Any]]] = {
        "data": DATA,
        "encoder": ENCODERS,
        "fusion": FUSIONS,
        "method": METHODS,
        "controller": CONTROLLERS,
        "optimizer": OPTIMIZERS,
        "schedule": SCHEDULES,
    }
    return registries[axis]
