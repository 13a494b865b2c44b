"""transformers: a Trainer whose optimizer has groups of modality x decay.

A `TrainerCallback` sees no batch, and is asked after the reporters. So this is a Trainer, and with
another one a mixin: `class Mine(VCMMTrainer, Seq2SeqTrainer)`. The controller is there before
accelerate prepares the optimizer and a checkpoint is loaded, and is saved in `optimizer.pt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer

from ..controller import MomentumController
from ..facade import VCMM
from ..groups import Claim, modal_groups
from . import Waiting


def split_groups(optimizer: Optimizer, model: nn.Module, modalities: Mapping[str, Claim]) -> None:
    """Make of each group one per modality, with the same settings."""
    owned = modal_groups(model, decay_filter=False, **modalities)
    groups = list(optimizer.param_groups)
    optimizer.param_groups.clear()
    for number, group in enumerate(groups):
        for owner in owned:
            members = set(owner["params"])
            if params := [p for p in group["params"] if p in members]:
                tags = {"name": f"{owner['name']}/{number}", "modality": owner["modality"]}
                optimizer.add_param_group({**group, "params": params, **tags})


class VCMMTrainer(Trainer):
    """A Trainer that gives each modality a momentum of its own, and logs it.

    Args:
        modalities: what belongs to each, as for `modal_groups`. The Trainer's groups, with and
            without weight decay, are split by it. An optimizer that is passed in keeps its groups.
        make: makes the controller of the optimizer: `VCMM`, or `partial(VCMM, heads=...)`.
        target: key of the target in a batch, if `make` names the heads to look at. Without it,
            `compute_loss` calls `self.observe`.
        trainer: the arguments of `Trainer`.

    Example:
        heads = {"image": model.image_head, "text": model.text_head}
        trainer = VCMMTrainer(model, args, ..., modalities={"image": "image*", "text": "text*"},
                              make=partial(VCMM, heads=heads), target="labels")
    """

    def __init__(
        self,
        *args: Any,
        modalities: Mapping[str, Claim] | None = None,
        make: Callable[[Optimizer], MomentumController] = VCMM,
        target: str | None = None,
        **trainer: Any,
    ) -> None:
        self.vcmm: MomentumController | None = None
        self._modalities = modalities
        self._make = make
        self._target = target
        self._waiting = Waiting()
        super().__init__(*args, **trainer)
        if self.args.n_gpu > 1 or self.is_deepspeed_enabled:
            raise ValueError(
                "nn.DataParallel runs the heads several times at once, and DeepSpeed steps "
                "parameters of its own; start one process per GPU, with torchrun, for DDP"
            )

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        made = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if made and self._modalities:
            split_groups(optimizer, cast(nn.Module, model or self.model), self._modalities)
        if made or self.vcmm is None:
            if self.vcmm is not None:  # of a model that was trained before
                self.vcmm.detach()
            self.vcmm = self._make(optimizer)
        return optimizer

    def observe(
        self,
        target: Tensor,
        /,
        *,
        mask: Tensor | None = None,
        **modalities: tuple[Tensor, Tensor],
    ) -> None:
        """`MomentumController.observe`, to be called in a `compute_loss` of yours."""
        if cast(nn.Module, self.model).training:
            self._waiting.add(target, mask, modalities)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._target is not None:  # here it is on the device, and label smoothing pops it next
            self.observe(inputs[self._target])
        return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        assert self.vcmm is not None
        self._waiting.drop()
        loss = super().training_step(*args, **kwargs)
        self._waiting.deliver(self.vcmm)
        self._waiting.require_any(
            self.vcmm,
            "call self.observe(target, audio=(features, logits)) in compute_loss, or name heads "
            "and target: VCMMTrainer(..., make=partial(VCMM, heads=...), target=...)",
        )
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.vcmm is not None and "loss" in logs:  # of training, not of an evaluation
            logs.update(self.vcmm.metrics())
        super().log(logs, *args, **kwargs)
