"""Lightning: a callback beside `modal_groups` in `configure_optimizers`.

When `on_fit_start` is called the optimizers exist, and their states are still to be restored. FSDP
keeps of them only what it knows, so the controller's record is the callback's state as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from ..controller import MomentumController
from ..facade import VCMM
from ..guard import tagged
from . import Waiting


class VCMMCallback(Callback):
    """Controls the optimizer whose groups `configure_optimizers` has made by `modal_groups`.

    Args:
        make: makes the controller of an optimizer: `VCMM`, or `partial(VCMM, heads=...)`.
        target: key or index of the target in a batch, if `make` names the heads to look at. Without
            it, `training_step` calls `observe`.
        log: give the controller's `metrics()` to the loggers, every `log_every_n_steps` steps.

    Example:
        Trainer(callbacks=[VCMMCallback(partial(VCMM, heads=heads), target="label")])
    """

    def __init__(
        self,
        make: Callable[[Optimizer], MomentumController] = VCMM,
        *,
        target: str | int | None = None,
        log: bool = True,
    ) -> None:
        self.make = make
        self.target = target
        self.waiting = Waiting()
        self._log = log  # Lightning gives every callback a `log` of its own
        self._controller: MomentumController | None = None
        self._record: Mapping[str, Any] | None = None  # from a checkpoint, until training starts
        self._logged = 0  # the step last logged

    @property
    def controller(self) -> MomentumController:
        """The controller of the present fit, or of the last one."""
        if self._controller:
            return self._controller
        raise ValueError("there is no optimizer yet, so no controller; ask after trainer.fit")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = [optimizer for optimizer in trainer.optimizers if tagged(optimizer)]
        if len(found) != 1:
            raise ValueError(
                f"{len(found)} optimizers carry modalities; in configure_optimizers, "
                "build one over modal_groups(self, audio=self.audio, video=self.video)"
            )
        if self._controller and self._controller.optimizer is not found[0]:  # of an earlier fit
            self._controller.detach()
            self._controller = None
        self._controller = self._controller or self.make(found[0])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._record is not None:
            self.controller.load_state_dict(self._record)
        self._record, self._logged = None, trainer.global_step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.waiting.drop()
        if self.target is not None:
            self.waiting.add(batch[self.target], None, {})

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.waiting.deliver(self.controller)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.waiting.require_any(
            self.controller,
            "call observe(self, target, audio=(features, logits), ...) in training_step, or write "
            "VCMMCallback(partial(VCMM, heads=...), target=...)",
        )
        step, every = trainer.global_step, int(vars(trainer)["log_every_n_steps"])
        if self._log and every and step % every == 0 and step != self._logged:
            self._logged = step
            for logger in trainer.loggers:  # Lightning counts from 0
                logger.log_metrics(self.controller.metrics(), step - 1)

    def state_dict(self) -> dict[str, Any]:
        return self._controller.state_dict() if self._controller else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._record = state_dict


def observe(
    module: LightningModule,
    target: Tensor,
    /,
    *,
    mask: Tensor | None = None,
    **modalities: tuple[Tensor, Tensor],
) -> None:
    """`MomentumController.observe`, to be called in `training_step` with `self`."""
    callbacks: list[Callback] = vars(module.trainer)["callbacks"]
    for callback in callbacks:
        if isinstance(callback, VCMMCallback):
            callback.waiting.add(target, mask, modalities)
            return
    raise ValueError("no callback waits for this; write Trainer(callbacks=[VCMMCallback()])")
