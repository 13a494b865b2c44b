"""G2D: gradient-guided distillation (ICCV 2025).

Every modality first gets a teacher, a network that learned from this modality alone. Then the
multimodal student is trained, guided by all of them; and on every batch the encoder of the modality
whose teacher is the most sure of the right answers does not learn, so that others get their turn.

| paper                                              | here                                      |
|----------------------------------------------------|-------------------------------------------|
| T^2 KL(softmax(t_m / T) || softmax(z / T))         | `distillation`, term "distill"            |
| MSE(h_m, h_m of the teacher)                       | term "features"                           |
| s_m = sum_i softmax(t_m(i))[y_i]                   | `confidence`                              |
| gradient of the surest modality's encoder is zero  | `permitted`, in `modulate`                |

t_m are the teacher's logits, z the student's fused ones. L = CE(z, y) + the sums of both terms over
modalities, all with weight 1 and T = 1. An encoder waits in epochs `starts` to `ends`, inclusive,
and in a tie none does. Published on late fusion (mean of logits), SGD 1e-3, batches of 16, 300
epochs, with encoders that wait in epochs 0 to 150.

The released code zeroes 4-D gradients alone, the kernels of images; so does `as_released=True`. The
default is every weight tensor (ours), so that other encoders are served; biases and norms learn on,
as there.

Deviations: teachers are trained here, before the first epoch, and not loaded from files. They start
from the student's initial weights, as a unimodal run with the same seed does, and take
`teacher_epochs` epochs with the student's optimizer, its learning rate going down half a cosine.
They learn in one copy of the model by sum_m CE(z_m), which is independent training as long as the
fusion shares nothing between modalities ("mean", "sum"). What that takes is counted. A method that
never saw `begin_epoch` has no teachers, and is joint training.

For any number of modalities (ours beyond two): only the surest is held back. With a single one
nobody is. Needs one class per sample.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from ..method import (
    Criterion,
    Method,
    Terms,
    confidence,
    refuse_several_labels,
    require_at_least,
    require_positive,
    total,
    window,
)
from ..model import Multimodal
from ..types import Batch, Data, Output


def distillation(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(teacher || student) of logits, a mean over samples."""
    given = (teacher / temperature).log_softmax(dim=1)
    learned = (student / temperature).log_softmax(dim=1)
    divergence = F.kl_div(learned, given, reduction="batchmean", log_target=True)
    return temperature**2 * divergence


def permitted(confidences: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By what the gradients of each encoder are multiplied: 0 for the surest, 1 in a tie."""
    values = torch.stack(list(confidences.values()))
    ahead = values == values.max()
    held = ahead & (ahead.sum() == 1) & (len(values) > 1)
    return dict(zip(confidences, (~held).to(values.dtype), strict=True))


class G2D(Method):
    """A student of unimodal teachers, in which the surest modality waits for the others.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and class ids.
        distill: the weight of what the teachers say.
        features: the weight of what they see.
        temperature: T, at which they say it.
        starts: the first epoch in which the surest modality is held back.
        ends: the last one.
        teacher_epochs: for how long the teachers learn.
        batch_size: of the teachers' training.
        as_released: hold back 4-D gradients alone.
    """

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        distill: float = 1.0,
        features: float = 1.0,
        temperature: float = 1.0,
        starts: int = 0,
        ends: int = 150,
        teacher_epochs: int = 15,
        batch_size: int = 64,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        refuse_several_labels("g2d", criterion, "a teacher is sure of")
        require_at_least("g2d", 0, distill=distill, features=features)
        require_at_least("g2d", 1, teacher_epochs=teacher_epochs)
        require_at_least("g2d", 2, batch_size=batch_size)
        require_positive("g2d", temperature=temperature)
        self.distill = distill
        self.features = features
        self.temperature = temperature
        self.window = window("g2d", starts, ends)
        self.teacher_epochs = teacher_epochs
        self.batch_size = batch_size
        self.as_released = as_released
        self.teachers = copy.deepcopy(model).requires_grad_(False).eval()
        self.taught = False
        self.epoch = 0
        self.keep: dict[str, Tensor] = {}  # of the batch at hand, from `loss` to `modulate`

    def train(self, mode: bool = True) -> Self:
        """Teachers stay in eval mode."""
        super().train(mode)
        self.teachers.eval()
        return self

    def begin_epoch(self, epoch: int, data: Data) -> None:
        self.epoch = epoch
        if not self.taught:
            self.teach(data)
            self.taught = True

    def teach(self, data: Data) -> None:
        """Train the teachers, all at once, from the weights that the student has now."""
        model, optimizer = self.twin()
        size = len(data.splits["train"])
        chance = self.generator("teachers")
        steps = self.teacher_epochs * math.ceil(size / self.batch_size)
        schedule = CosineAnnealingLR(optimizer, steps)
        for _ in range(self.teacher_epochs):
            order = torch.randperm(size, generator=chance)
            for rows in torch.split(order, self.batch_size):
                if len(rows) == 1 < size:  # batch norm needs two
                    continue
                batch = data.batch("train", rows).to(self.device)
                output: Output = model(batch.inputs)
                losses = {m: self.criterion(z, batch.target) for m, z in output.logits.items()}
                total(losses).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                self.counts.update(forwards=1, backwards=1, updates=1)
        self.teachers.load_state_dict(model.state_dict())

    def loss(self, output: Output, batch: Batch) -> Terms:
        terms = super().loss(output, batch)
        self.keep = {}
        if not self.taught:
            return terms
        with torch.no_grad():
            taught: Output = self.teachers(batch.inputs)
        self.counts["forwards"] += 1
        if self.epoch in self.window:
            sure = {m: confidence(z, batch.target) for m, z in taught.logits.items()}
            self.keep = permitted(sure)
        said = {
            m: distillation(output.fused, z, self.temperature) for m, z in taught.logits.items()
        }
        seen = {m: F.mse_loss(h, taught.features[m]) for m, h in output.features.items()}
        terms["distill"] = self.distill * total(said)
        terms["features"] = self.features * total(seen)
        return terms

    def modulate(self, output: Output, batch: Batch) -> None:
        for modality, factor in self.keep.items():
            for parameter in self.model.encoders[modality].parameters():
                if parameter.grad is not None and self.is_held_back(parameter):
                    parameter.grad.mul_(factor)

    def is_held_back(self, parameter: Tensor) -> bool:
        """Whether a parameter waits while its modality does."""
        return parameter.ndim == 4 if self.as_released else parameter.ndim > 1

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "taught": self.taught, "epoch": self.epoch}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.taught = state["taught"]
        self.epoch = state["epoch"]
