"""Learning rate schedules by name. All of them advance once per optimizer step.

A schedule is made of an optimizer, the number of epochs, and the number of steps in each.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    StepLR,
)


def constant(optimizer: Optimizer, epochs: int, steps: int) -> LRScheduler:
    """The same learning rate throughout."""
    return LambdaLR(optimizer, lambda step: 1.0)


def step(
    optimizer: Optimizer, epochs: int, steps: int, *, every: int = 70, factor: float = 0.1
) -> LRScheduler:
    """Times `factor` after every `every` epochs."""
    if every < 1:
        raise ValueError(f"step: every is {every}; it must be 1 epoch or more")
    return StepLR(optimizer, every * steps, factor)


def cosine(optimizer: Optimizer, epochs: int, steps: int, *, least: float = 0.0) -> LRScheduler:
    """Half a cosine, from the learning rate down to `least`."""
    return CosineAnnealingLR(optimizer, epochs * steps, least)


def one_cycle(
    optimizer: Optimizer,
    epochs: int,
    steps: int,
    *,
    rise: float = 0.3,
    momenta: tuple[float, float] | None = None,
) -> LRScheduler:
    """Up to the learning rate during the first `rise` of training, and down again.

    With `momenta` (a lower and an upper one) the optimizer's momentum takes the opposite way.
    """
    total = epochs * steps
    # torch divides by the length of the rise less one step, and by that of the descent.
    if not 0 <= rise < 1 or rise * total == 1:
        raise ValueError(
            f"one_cycle: rise is {rise}, {rise * total:g} of {total} steps; it must be in [0, 1), "
            "and not the first step alone"
        )
    base, highest = momenta or (0.85, 0.95)
    return OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        total,
        pct_start=rise,
        cycle_momentum=momenta is not None,
        base_momentum=base,
        max_momentum=highest,
    )


SCHEDULES: dict[str, Callable[..., LRScheduler]] = {
    "constant": constant,
    "cosine": cosine,
    "one_cycle": one_cycle,
    "step": step,
}
