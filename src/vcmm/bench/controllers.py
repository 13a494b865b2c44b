"""The axis of momentum: who decides it for each modality. Any method goes with any controller.

A controller is made of an optimizer, the loss per sample that is probed, and the number of steps
that the training is going to take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch.optim import Optimizer

from vcmm import VCMM, Fixed, Frozen, Kalman, MomentumController
from vcmm.probe import Loss

Controller = Callable[..., MomentumController | None]


def none(optimizer: Optimizer, loss: Loss, steps: int) -> None:
    """The optimizer's own momentum, the same for all."""


def vcmm(
    optimizer: Optimizer,
    loss: Loss,
    steps: int,
    *,
    strength: float = 1.0,
    smoothing: float = 0.95,
    floor: float = 1e-4,
    gain_range: tuple[float, float] = (0.01, 0.30),
    warmup: int = 0,
    subtract_noise: bool = True,
    center: bool = True,
    floor_after_smoothing: bool = False,
    exact: bool = True,
    encoder_every: int = 0,
) -> MomentumController:
    """Variance-calibrated momentum, as published unless an option says otherwise.

    With `encoder_every` a recorder beside it measures noise and drift of the encoders' own
    gradients, every so many steps (`recorder`); it changes nothing that is trained.
    """
    if encoder_every < 0:
        raise ValueError(
            f"vcmm: encoder_every is {encoder_every}; it is a number of steps, or 0 for never"
        )
    return VCMM(
        optimizer,
        loss=loss,
        exact=exact,
        strength=strength,
        smoothing=smoothing,
        floor=floor,
        gain_range=gain_range,
        warmup=warmup,
        subtract_noise=subtract_noise,
        center=center,
        floor_after_smoothing=floor_after_smoothing,
    )


def fixed(
    optimizer: Optimizer, loss: Loss, steps: int, *, betas: Mapping[str, float]
) -> MomentumController:
    """A constant momentum per modality, for instance audio=.95,video=.8."""
    return MomentumController(optimizer, Fixed(**betas), loss=loss)


def frozen(
    optimizer: Optimizer,
    loss: Loss,
    steps: int,
    *,
    after: float = 0.1,
    average: float = 0.02,
    floor_after_smoothing: bool = False,
) -> MomentumController:
    """VCMM for the first `after` of all steps, then its mean over the last `average` of them."""
    for name, part in (("after", after), ("average", average)):
        if not 0 < part <= 1:
            raise ValueError(f"frozen: {name} is {part}; it is a share of all steps, in (0, 1]")
    last = max(1, round(after * steps))
    counted = min(last, max(1, round(average * steps)))
    policy = Kalman(floor_after_smoothing=floor_after_smoothing)
    return MomentumController(optimizer, Frozen(policy, after=last, average=counted), loss=loss)


CONTROLLERS: dict[str, Controller] = {
    "fixed": fixed,
    "frozen": frozen,
    "none": none,
    "vcmm": vcmm,
}
