"""MMPareto: boosting multimodal learning with innocent unimodal assistance (ICML 2024).

Every encoder m has two objectives, the fused loss and its own. Where their gradients agree they are
added up; where they conflict, the combination of smallest norm descends on both, and it is made as
long again as the sum is, since that length is what helps to generalize.

| paper                                                              | here        |
|--------------------------------------------------------------------|-------------|
| g0 = grad CE(z, y), g1 = grad CE(z_m, y), over the whole encoder m | `gradients` |
| cos(g0, g1) > 0: k = (.5, .5)                                      | `share`     |
| else k = argmin ||k0 g0 + k1 g1||^2, k0 + k1 = 1                   | `share`     |
| n = 2 k0 g0 + 2 k1 g1; gamma max(||g0 + g1|| / ||n||, 1) n         | `combine_`  |

k0 = (g1.g1 - g0.g1) / ||g0 - g1||^2, within .001 and .999. k is one for the whole encoder, the
length is restored tensor by tensor, biases and norms included, and gamma comes in both cases. All
that is in no encoder, which is the heads, gets the plain sum of all gradients.

There is no difference between published and released but this: the released code makes a schedule
for the learning rate (a tenth after 30 epochs) and never steps it, so its results are those of a
constant one. Choose `schedule` accordingly.

The gradients of all modalities' own losses come from one backward of their sum, because no encoder
is reached by another's loss. Nothing changes for other numbers of modalities, nor for several
labels.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from .. import lists
from ..lists import Tensors
from ..method import Criterion, Method, Terms, require_positive, total
from ..model import Multimodal
from ..types import Batch, Output


def share(joint: Tensor, own: Tensor, both: Tensor) -> Tensor:
    """k0, from the lengths [T] of g0, g1 and g0 + g1 by tensor of an encoder; k1 = 1 - k0."""
    joint, own, both = (each.square().sum() for each in (joint, own, both))
    agree = (both - joint - own) / 2  # g0.g1
    tiny = torch.finfo(agree.dtype).tiny
    shortest = (own - agree) / (joint + own - 2 * agree).clamp_min(tiny)
    return torch.where(agree > 0, 0.5, shortest.clamp(0.001, 0.999))


def integrate_(joint: Tensors, own: Tensors, gamma: float) -> None:
    """The gradients of an encoder take the place of g0; g1 is used up."""
    blocks = list(lists.blocks(joint))
    found = [
        tuple(map(lists.lengths, (joint[b], own[b], lists.sums(joint[b], own[b])))) for b in blocks
    ]
    k = share(*(torch.cat(each) for each in zip(*found, strict=True)))
    for block, (_, _, both) in zip(blocks, found, strict=True):
        combine_(joint[block], own[block], both, k, gamma)


def combine_(joint: Tensors, own: Tensors, both: Tensor, k: Tensor, gamma: float) -> None:
    """g0 <- what stands above, from g0, g1, the lengths of g0 + g1, and k0."""
    lists.multiply_(joint, 2 * k)
    lists.multiply_(own, 2 * (1 - k))
    lists.add_(joint, own)
    longer = both / lists.lengths(joint).clamp_min(1e-12)
    for gradient, factor in zip(joint, gamma * longer.clamp_min(1.0), strict=True):
        gradient.mul_(factor)


class MMPareto(Method):
    """The fused loss and every modality's own, without conflict in the encoders.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and target.
        gamma: what the encoders' gradients are multiplied with in the end.
    """

    fusion: ClassVar[str] = "branches"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        gamma: float = 1.5,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        require_positive("mmpareto", gamma=gamma)
        self.gamma = gamma

    def loss(self, output: Output, batch: Batch) -> Terms:
        own = {m: self.criterion(z, batch.target) for m, z in output.logits.items()}
        return {**super().loss(output, batch), **own}

    def backward(self, terms: Terms) -> None:
        own = total({name: term for name, term in terms.items() if name != "fused"})
        self.counts["backwards"] += 2
        first = self.gradients(terms["fused"], retain_graph=True)
        second = self.gradients(own)
        for parameter in {**first, **second}:
            # A gradient that nothing has reached is zero, where there is another.
            for found in (first, second):
                if parameter not in found:
                    found[parameter] = torch.zeros_like(parameter)
        for encoder in self.model.encoders.values():
            held = [parameter for parameter in encoder.parameters() if parameter in first]
            if held:
                integrate_([first[p] for p in held], [second.pop(p) for p in held], self.gamma)
        for parameter, gradient in first.items():
            rest = second.get(parameter)  # what is in no encoder has it still
            parameter.grad = gradient if rest is None else gradient + rest

    def gradients(self, loss: Tensor, *, retain_graph: bool = False) -> dict[nn.Parameter, Tensor]:
        """Of every parameter that the loss reaches, to be changed in place.

        What torch accumulates belongs to its parameter alone; what `autograd.grad` returns can be
        shared by several, or a view of a single number.
        """
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = None
        loss.backward(retain_graph=retain_graph, inputs=trained)
        found = {parameter: parameter.grad for parameter in trained if parameter.grad is not None}
        for parameter in found:
            parameter.grad = None
        return found
