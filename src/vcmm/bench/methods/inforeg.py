"""InfoReg: adaptive regulation for balanced multimodal information acquisition (CVPR 2025).

An encoder takes in most of its information early in training, in its prime learning window. The
modality that is ahead in a batch is held to the weights that it had when the epoch began, as long
as its window is open; so the others have time to take in theirs.

| paper                                                          | here             |
|----------------------------------------------------------------|------------------|
| L = CE(z, y) + sum_m CE(z_m, y)                                | `InfoReg.loss`   |
| T_m(e) = sum over weights of mean(sum over steps of g^2)       | `trace`          |
| k_m(e) = (T_m(e-1) - T_m(e-11)) / (T_m(e-10) + .. + T_m(e-1))  | `learning`       |
| s_m = sum_i softmax(z_m(i))[y_i]                               | `confidence`     |
| b = beta exp(tanh(s_m - s_j)) if m is ahead and k_m > K        | `regulation`     |
| g_m <- g_m + b (theta_m - theta_m at the beginning of e)       | `hold_`          |

T is zero before epoch 0 and k = 1 while nothing is known, so the window is open at first. The trace
has the gradients after the last line. The first step of an epoch is not regulated, since the
weights are then those of its beginning. s is a sum over the batch, so tanh is 1 or -1 but for ties
and small batches: b is beta e.

The released code has a beta for each of its two modalities, .95 for audio and .1 for the images;
here `beta` is one for all, and `betas` gives some their own. The paper's window belongs to a
modality, which is the default; the released code looks at the trace of audio alone and regulates
whoever is ahead while that is open. `as_released=True` does the same with the modality that comes
first by name. (As published it does not start: files are missing, and heads without a gradient
break its trace.)

Deviations: weights are all tensors of an encoder with two dimensions or more, in place of those of
convolutions and linear layers. For any number of modalities (ours): the one with the largest s is
ahead, by its distance to the mean of the others. Where several are exactly equal nobody is. Without
`begin_epoch`, in a loop of one's own, everything is one epoch. Needs one class per sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from .. import lists
from ..by_modality import ByModality
from ..lists import Tensors
from ..method import (
    Criterion,
    Method,
    Terms,
    confidence,
    refuse_several_labels,
    require_at_least,
)
from ..model import Multimodal
from ..types import Batch, Data, Output

EPOCHS = 10  # that k looks back


def learning(history: Tensor) -> Tensor:
    """k [M] from the traces [M, 11] of as many epochs, the latest last: how much it still grows."""
    recent = history[:, 1:].sum(dim=1)
    grown = history[:, -1] - history[:, 0]
    return torch.where(recent > 0, grown / recent.clamp_min(torch.finfo(recent.dtype).tiny), 1.0)


def leads(scores: Tensor) -> Tensor:
    """By how much the leader is ahead of the mean of the others, and 0 for all others: [M]."""
    count = len(scores)
    if count == 1:
        return torch.zeros_like(scores)
    gap = scores - (scores.sum() - scores) / (count - 1)
    best = scores == scores.max()
    return torch.where(best & (best.sum() == 1), gap, 0.0)


def regulation(scores: Tensor, betas: Tensor) -> Tensor:
    """b [M]: how strongly each modality is held; 0 for all but the leader."""
    gap = leads(scores)
    return torch.where(gap > 0, betas * torch.exp(torch.tanh(gap)), 0.0)


class InfoReg(Method):
    """The leader is held to where the epoch began, while its window is open.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and class ids.
        beta: how strongly the leader is held.
        betas: others for some modalities, for instance audio=.95,video=.1.
        threshold: K; a window is open while k is above it.
        as_released: the trace of the first modality by name opens the window of all.
    """

    fusion: ClassVar[str] = "concat"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        beta: float = 0.95,
        betas: Mapping[str, float] | None = None,
        threshold: float = 0.05,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        names = model.modalities
        own = dict(betas or {})
        for name in own.keys() - set(names):
            raise ValueError(
                f"inforeg: betas has {name!r}, which is no modality; there are {', '.join(names)}"
            )
        require_at_least("inforeg", 0, beta=beta)
        require_at_least("inforeg: betas", 0, **own)
        refuse_several_labels("inforeg", criterion, "it compares probabilities of")
        self.threshold = threshold
        self.as_released = as_released
        weight = next(model.parameters()).detach()
        strengths = weight.new_tensor([own.get(m, beta) for m in names])
        self.register_buffer("betas", strengths, persistent=False)
        self.betas: Tensor
        self.register_buffer("history", weight.new_zeros(len(names), EPOCHS + 1))
        self.history: Tensor
        self.register_buffer("traces", weight.new_zeros(len(names)))  # of the present epoch
        self.traces: Tensor
        self.anchors = ByModality({m: frozen(model.encoders[m]) for m in names})
        self.open: dict[str, bool] = dict.fromkeys(names, True)

    def begin_epoch(self, epoch: int, data: Data) -> None:
        self.history = torch.cat([self.history[:, 1:], self.traces[:, None]], dim=1)
        self.traces.zero_()
        k = learning(self.history)
        if self.as_released:
            k = k[:1].expand_as(k)
        # The only look at the device, once an epoch: closed windows then cost nothing.
        found = cast("list[bool]", (k > self.threshold).tolist())
        self.open = dict(zip(self.open, found, strict=True))
        with torch.no_grad():
            for modality, anchor in self.anchors.items():
                encoder = self.model.encoders[modality]
                for kept, parameter in zip(anchor.parameters(), encoder.parameters(), strict=True):
                    kept.copy_(parameter)

    def loss(self, output: Output, batch: Batch) -> Terms:
        own = {m: self.criterion(z, batch.target) for m, z in output.logits.items()}
        return {**super().loss(output, batch), **own}

    @torch.no_grad()
    def modulate(self, output: Output, batch: Batch) -> None:
        scores = [confidence(output.logits[m], batch.target) for m in self.open]
        strengths = regulation(torch.stack(scores), self.betas)
        held = {m: b if self.open[m] else None for m, b in zip(self.open, strengths, strict=True)}
        self.traces += torch.stack([self.regulate(m, b) for m, b in held.items()])

    def regulate(self, modality: str, strength: Tensor | None) -> Tensor:
        """Draw an encoder back, if its window is open; what T needs of its gradients."""
        trained = self.model.encoders[modality].parameters()
        pairs = zip(trained, self.anchors[modality].parameters(), strict=True)
        reached = [(p.grad, p, anchor) for p, anchor in pairs if p.grad is not None]
        found = [self.traces.new_zeros(())]
        for block in lists.blocks([gradient for gradient, _, _ in reached]):
            gradients, parameters, anchors = zip(*reached[block], strict=True)
            if strength is not None:
                hold_(gradients, parameters, anchors, strength)
            weights = [gradient for gradient in gradients if gradient.ndim > 1]
            if weights:
                found.append(trace(weights))
        return torch.stack(found).sum()

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "open": dict(self.open)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.open = dict(state["open"])


def frozen(encoder: nn.Module) -> nn.ParameterList:
    """A copy of its parameters that nothing trains."""
    copies = (parameter.detach().clone() for parameter in encoder.parameters())
    return nn.ParameterList([nn.Parameter(copy, requires_grad=False) for copy in copies])


def hold_(gradients: Tensors, parameters: Tensors, anchors: Tensors, strength: Tensor) -> None:
    """g <- g + b (theta - theta at the beginning of the epoch)."""
    away = lists.differences(parameters, anchors)
    lists.multiply_(away, strength)
    lists.add_(gradients, away)


def trace(gradients: Tensors) -> Tensor:
    """The mean square of each, summed over them.

    Means and sums can be exchanged, so what T needs of a step is this number and no more.
    """
    roots = [math.sqrt(gradient.numel()) for gradient in gradients]
    return lists.lengths(gradients, roots).square().sum()
