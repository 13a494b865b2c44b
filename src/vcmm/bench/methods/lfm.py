"""LFM: the gap between modalities is closed early, and classified late (NeurIPS 2024).

The loss mixes classification with a term that makes the modalities say the same of a sample; what
the mixture is at which epoch is either a curve or learned.

| paper                                                      | here                              |
|------------------------------------------------------------|-----------------------------------|
| L = 2 (a_1 CE(mean of z_m, y) + a_2 A), a_1 + a_2 = 1      | `loss`                            |
| A = .5 (KL(m||p) + KL(m||q)), m = (p + q) / 2              | `disagreement`, `alignment`       |
| a_1(e), a fitted polynomial of degree 5                    | `curve`, schedule "fitted"        |
| h = grad <grad (a_1 CE + a_2 A), grad CE>, on 8 held rows  | `hypergradient`                   |
| a_2 <- clip(a_2 - eta mean(h), .05, .95)                   | `begin_epoch`, schedule "learned" |

p and q are the modalities' posteriors. Learning begins with a_1 = .05, takes a step after every
epoch, and eta, 1e-4, is halved at every epoch that is a multiple of 20.

The paper speaks of contrastive learning; only the formulas of the released code are known, and the
default is made of them. Its A has the arguments of a Jensen-Shannon divergence the other way round,
so it has no upper bound; it is computed from log-probabilities here and stays finite. The mean of h
is the released one with one change: the code averages over the first parameter tensor alone, which
belongs to whichever modality comes first. Here it is the mean over all parameters;
`as_released=True` takes the first tensor. The eight held-out rows stay out of training (the release
holds out sixteen and uses the first eight), and the network is in eval mode for them.

The curve was fitted to 200 epochs. `length` stretches it over as many as there are (ours), and
after its end it stays at the last value, for the polynomial itself turns down steeply.

For any number of modalities A is the sum over all pairs, as the author advises; with a single one
there is no gap, and this is joint training. Needs one class per sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..holdout import hold_out
from ..method import Criterion, Method, Terms, refuse_several_labels, require_at_least
from ..model import Multimodal
from ..types import Batch, Data, Output

# Of a_1 as a function of the epoch, lowest power first.
CURVE = (0.204623704, 3.35472727e-3, 1.22989557e-4, -2.92947416e-6, 2.23835486e-8, -5.39717505e-11)
CURVE_EPOCHS = 200
FIRST = 0.05  # a_1 where it is learned, at the beginning; a_2 stays as far from 0 and 1
HALVED = 20  # epochs between two halvings of eta


def curve(epoch: float) -> float:
    """a_1 of the fitted schedule; it stays where it is at the last of its 200 epochs."""
    at = min(epoch, CURVE_EPOCHS - 1)
    return sum(factor * at**power for power, factor in enumerate(CURVE))


def disagreement(one: Tensor, other: Tensor) -> Tensor:
    """.5 (KL(m||p) + KL(m||q)) of two modalities' logits, a mean over samples."""
    p, q = one.log_softmax(dim=1), other.log_softmax(dim=1)
    middle = torch.stack([p, q]).logsumexp(dim=0) - math.log(2)
    to_one = F.kl_div(p, middle, reduction="batchmean", log_target=True)
    to_other = F.kl_div(q, middle, reduction="batchmean", log_target=True)
    return 0.5 * (to_one + to_other)


def alignment(logits: Mapping[str, Tensor]) -> Tensor:
    """A: the disagreement of all pairs."""
    pairs = combinations(logits.values(), 2)
    return torch.stack([disagreement(one, other) for one, other in pairs]).sum()


def hypergradient(
    classify: Tensor, align: Tensor, weight: Tensor, over: Sequence[Tensor]
) -> Tensor:
    """h of every parameter, flat, one after the other; `weight` is a_2."""
    mixture = (1 - weight) * classify + weight * align
    ways = [
        torch.autograd.grad(loss, over, create_graph=True, materialize_grads=True)
        for loss in (mixture, classify)
    ]
    along = torch.stack([(t * c).sum() for t, c in zip(*ways, strict=True)]).sum()
    found = torch.autograd.grad(along, over, materialize_grads=True)
    return torch.cat([h.flatten() for h in found])


class LFM(Method):
    """Classification, and the agreement of the modalities, in a mixture that moves.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and class ids.
        schedule: how the mixture moves: learned, or along the fitted curve.
        eta: the learning rate of the mixture.
        held: rows held out of train, from which it is learned.
        length: epochs over which the fitted curve is stretched.
        as_released: learn from the first parameter tensor alone.
    """

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        schedule: Literal["learned", "fitted"] = "learned",
        eta: float = 1e-4,
        held: int = 8,
        length: int = CURVE_EPOCHS,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        refuse_several_labels("lfm", criterion, "the modalities' posteriors are over")
        if schedule not in ("learned", "fitted"):
            raise ValueError(f'lfm: schedule is {schedule!r}; it is "learned" or "fitted"')
        require_at_least("lfm", 0, eta=eta)
        require_at_least("lfm", 1, held=held, length=length)
        self.schedule = schedule
        self.eta = eta
        self.held = held
        self.length = length
        self.as_released = as_released
        self.weight: Tensor  # a_2
        first = FIRST if schedule == "learned" else curve(0)
        self.register_buffer("weight", torch.tensor(1 - first, device=self.device))
        self.rest: Tensor | None = None  # the rows of train that are trained on

    def begin_epoch(self, epoch: int, data: Data) -> None:
        if self.schedule == "fitted":
            self.weight.fill_(1 - curve(epoch * CURVE_EPOCHS / self.length))
            return
        target = data.splits["train"].target
        if self.held >= len(target):
            raise ValueError(
                f"lfm: held is {self.held}, and train has {len(target)} rows; hold out fewer, or "
                'use schedule="fitted"'
            )
        rest, rows = hold_out(target, self.held / len(target), 0)
        self.rest = torch.from_numpy(rest)
        if epoch > 0 and len(self.model.modalities) > 1:
            held = data.batch("train", torch.from_numpy(rows)).to(self.device)
            self.learn(held, self.eta * 0.5 ** (epoch // HALVED))

    def learn(self, batch: Batch, eta: float) -> None:
        """A step of a_2, on rows that were held out."""
        self.eval()
        output: Output = self.model(batch.inputs)
        self.train()
        classify = self.criterion(output.fused, batch.target)
        over = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        h = hypergradient(classify, alignment(output.logits), self.weight, over)
        slope = h[: over[0].numel()].mean() if self.as_released else h.mean()
        self.weight.sub_(eta * slope).clamp_(FIRST, 1 - FIRST)
        self.counts.update(forwards=1, backwards=3)

    def sampler(self, epoch: int) -> Tensor | None:
        if self.rest is None:
            return None
        return self.shuffled(self.rest)

    def loss(self, output: Output, batch: Batch) -> Terms:
        terms = super().loss(output, batch)
        if len(output.logits) == 1:
            return terms
        align = alignment(output.logits)
        weighted = {"fused": 2 * (1 - self.weight) * terms["fused"]}
        return {**weighted, "alignment": 2 * self.weight * align}
