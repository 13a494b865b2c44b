"""VCMM where other libraries own the training loop. Each file needs its library, none another.

Lightning, for one, runs the forward pass while the last step's gradients are still there, and drops
them before it goes backward. Who observes in between cannot tell whether that step was taken. So
what a forward pass shows waits here until the gradients are there that it belongs to.
"""

from __future__ import annotations

from torch import Tensor

from ..controller import MomentumController
from ..facade import VCMM

Observation = tuple[Tensor, Tensor | None, dict[str, tuple[Tensor, Tensor]]]


class Waiting:
    """Observations between a forward pass and its backward pass."""

    def __init__(self) -> None:
        self._waiting: list[Observation] = []
        self._any = False

    def add(
        self, target: Tensor, mask: Tensor | None, modalities: dict[str, tuple[Tensor, Tensor]]
    ) -> None:
        """Keep what `MomentumController.observe` is going to be given, without its graph."""
        detached = {name: (h.detach(), z.detach()) for name, (h, z) in modalities.items()}
        self._waiting.append((target, mask, detached))

    def deliver(self, controller: MomentumController) -> None:
        """Have the controller observe all, now that the gradients are there."""
        for target, mask, modalities in self._waiting:
            controller.observe(target, mask=mask, **modalities)
            self._any = True
        self.drop()

    def drop(self) -> None:
        """Forget a forward pass that no backward pass has followed."""
        self._waiting = []

    def require_any(self, controller: MomentumController, remedy: str) -> None:
        """A loop that nobody looks into would silently train without the method."""
        if isinstance(controller, VCMM) and not self._any:
            raise ValueError(f"VCMM was shown nothing of the first batch; {remedy}")
