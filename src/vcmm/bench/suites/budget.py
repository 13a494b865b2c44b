"""How long to train on data of this size: epochs and seeds, by the size of train.

| budget | optimizer steps of a run | epochs     | seeds |
|--------|--------------------------|------------|-------|
| small  | about 600                | 5 to 30    | 3     |
| full   | about 6000               | 20 to 100  | 5     |

The bounds on epochs come first: on large data a run takes more steps, on small data fewer. Neither
is the schedule of any paper. They are starting points, equal for all methods that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Name = Literal["small", "full"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What every arm may spend."""

    epochs: int
    seeds: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How a budget follows from the size of train."""

    steps: int
    least: int  # epochs
    most: int
    seeds: int


SCALES = {"small": Scale(600, 5, 30, 3), "full": Scale(6000, 20, 100, 5)}


def budget(name: str, samples: int, batch_size: int) -> Budget:
    """The budget of this name for so many samples in train."""
    if name not in SCALES:
        raise ValueError(f"there is no budget {name!r}; choose from {', '.join(SCALES)}")
    scale = SCALES[name]
    per_epoch = max(1, math.ceil(samples / batch_size))
    epochs = min(max(math.ceil(scale.steps / per_epoch), scale.least), scale.most)
    return Budget(epochs, scale.seeds)


def within(
    base: Mapping[str, Any], name: str, seeds: int | None, epochs: int | None, batch_size: int
) -> tuple[dict[str, Any], int]:
    """The base with epochs and batch size, and how many seeds; what is None is the budget's.

    The data is looked at only if the epochs depend on it.
    """
    from ..data import load
    from ..spec import Choice

    samples = 0
    if epochs is None:
        data = Choice.of("data", base.get("data", "watch"))
        samples = len(load(data.name, **data.options).splits["train"])
    found = budget(name, samples, batch_size)
    spent = {**base, "epochs": epochs or found.epochs, "batch_size": batch_size}
    return spent, found.seeds if seeds is None else seeds
