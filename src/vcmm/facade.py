"""`VCMM`: the method of the paper in one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .controller import MomentumController
from .heads import Capture
from .policy import Kalman
from .probe import Loss


class KalmanOptions(TypedDict, total=False):
    """The arguments of `Kalman`."""

    strength: float
    smoothing: float
    floor: float
    gain_range: tuple[float, float]
    warmup: int
    subtract_noise: bool
    center: bool
    floor_after_smoothing: bool


class VCMM(MomentumController):
    """The method of the paper: `MomentumController(optimizer, Kalman(**kalman))`, plus heads.

    Args:
        optimizer: over groups from `modal_groups`.
        loss: "cross_entropy", or a function of logits and target that gives a value per sample.
        heads: the linear head of each modality, or one head over concatenated features together
            with `slices`. Their inputs and outputs are then observed by hooks.
        slices: where in the one head's input each modality's features lie.
        exact: as for `MomentumController`, and so `process_group`.
        kalman: arguments of `Kalman`.

    Example:
        optimizer = torch.optim.AdamW(modal_groups(model, audio=model.audio, video=model.video))
        vcmm = VCMM(optimizer)
        ...
        loss.backward()
        vcmm.observe(target, audio=(h_a, z_a), video=(h_v, z_v))
        optimizer.step()
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        loss: Loss = "cross_entropy",
        heads: Mapping[str, nn.Module] | nn.Linear | None = None,
        slices: Mapping[str, slice] | None = None,
        exact: bool = True,
        process_group: dist.ProcessGroup | None = None,
        **kalman: Unpack[KalmanOptions],
    ) -> None:
        self._capture: Capture | None = None
        super().__init__(
            optimizer, Kalman(**kalman), exact=exact, process_group=process_group, loss=loss
        )
        if heads is not None:
            try:
                self._capture = Capture(heads, slices)
                self._require_known(self._capture.modalities)
            except ValueError:
                self.detach()
                raise
        elif slices is not None:
            self.detach()
            raise ValueError("slices need their head: VCMM(optimizer, heads=head, slices=slices)")

    def observe(
        self,
        target: Tensor,
        /,
        *,
        mask: Tensor | None = None,
        **modalities: tuple[Tensor, Tensor],
    ) -> None:
        """As `MomentumController.observe`; with heads, `observe(target)` is enough."""
        if self._capture is not None and not modalities:
            self._require_hooks()
            modalities = self._capture.take()
        super().observe(target, mask=mask, **modalities)

    def attach(self, optimizer: Optimizer | None = None) -> None:
        super().attach(optimizer)
        if self._capture is not None:
            self._capture.attach()

    def detach(self) -> None:
        super().detach()
        if self._capture is not None:
            self._capture.detach()
