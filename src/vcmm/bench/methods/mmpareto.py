"""MMPareto: boosting multimodal learning with innocent unimodal assistance (ICML 2024).

Every encoder m has two objectives, the fused loss and its own. Where their gradients agree they are
added up; where they conflict, the combination of smallest norm descends on both, and it is made as
long again as the sum is, since that length is what helps to generalize.

| paper                                                              | here             |
|--------------------------------------------------------------------|------------------|
| g0 = grad CE(z, y), g1 = grad CE(z_m, y), over the whole encoder m | `MMPareto.pairs` |
| cos(g0, g1) > 0: k = (.5, .5)                                      | `share`          |
| else k = argmin ||k0 g0 + k1 g1||^2, k0 + k1 = 1                   | `share`          |
| n = 2 k0 g0 + 2 k1 g1; gamma max(||g0 + g1|| / ||n||, 1) n         | `integrated`     |

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

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..method import Criterion, Method, Terms, require_positive, total
from ..model import Multimodal
from ..types import Batch, Output

Pair = tuple[Tensor, Tensor]  # g0 and g1 of one parameter


def share(pairs: Sequence[Pair]) -> Tensor:
    """k0, from g0 and g1 of every tensor of an encoder; k1 = 1 - k0."""
    joint, own, both = (
        torch.stack([(pair[i] * pair[j]).sum() for pair in pairs]).sum()
        for i, j in ((0, 0), (1, 1), (0, 1))
    )
    tiny = torch.finfo(both.dtype).tiny
    shortest = (own - both) / (joint + own - 2 * both).clamp_min(tiny)
    return torch.where(both > 0, 0.5, shortest.clamp(0.001, 0.999))


def integrated(joint: Tensor, own: Tensor, k: Tensor, gamma: float) -> Tensor:
    """The gradient of one tensor, from g0, g1 and k0."""
    combined = 2 * k * joint + 2 * (1 - k) * own
    longer = length(joint + own) / length(combined).clamp_min(1e-12)
    return gamma * longer.clamp_min(1.0) * combined


def length(tensor: Tensor) -> Tensor:
    """||g|| over all entries."""
    return tensor.square().sum().sqrt()


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
        pairs = self.pairs(terms)
        for parameter, (joint, own) in pairs.items():
            parameter.grad = joint + own
        for encoder in self.model.encoders.values():
            held = [parameter for parameter in encoder.parameters() if parameter in pairs]
            if held:
                k = share([pairs[parameter] for parameter in held])
                for parameter in held:
                    parameter.grad = integrated(*pairs[parameter], k, self.gamma)

    def pairs(self, terms: Terms) -> dict[nn.Parameter, Pair]:
        """The gradients of the fused loss, and of all others, by every parameter that has any."""
        own = total({name: term for name, term in terms.items() if name != "fused"})
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.counts["backwards"] += 2
        first = torch.autograd.grad(terms["fused"], trained, retain_graph=True, allow_unused=True)
        second = torch.autograd.grad(own, trained, allow_unused=True)
        found = zip(trained, first, second, strict=True)
        return {p: (zero_if_none(a, b), zero_if_none(b, a)) for p, a, b in found if a is not b}


def zero_if_none(gradient: Tensor | None, other: Tensor | None) -> Tensor:
    """A gradient that nothing has reached is zero, where there is another to add it to."""
    if gradient is None:
        assert other is not None
        return torch.zeros_like(other)
    return gradient
