"""G-Blend: gradient blending by the ratio of overfitting to generalization (CVPR 2020).

Every modality has a head of its own beside the fused one, and the losses of these branches are
weighted. A branch deserves much weight if, trained alone, it brings down the loss on held-out rows
much (G), and little if the gap to its training loss opens meanwhile (O).

| paper                                                     | here                               |
|-----------------------------------------------------------|------------------------------------|
| L = sum_k w_k CE(z_k, y), k = every modality, and fused   | `loss`                             |
| G_k = L^V_k(n) - L^V_k(N)                                 | `blend`                            |
| O_k = (L^V_k(N) - L^T_k(N)) - (L^V_k(n) - L^T_k(n))       | `blend`                            |
| w_k = G_k / O_k^2, divided by their sum                   | `blend`                            |
| online: from the current model, before each super-epoch   | `begin_epoch`                      |
| offline: once, from scratch, over the full length         | `online=False`, `super_epoch`      |

n and N are the beginning and the end of a super-epoch, `super_epoch` epochs in which a copy of the
current model is trained for each branch alone. L^T and L^V are means over the rows that are trained
on and over the held-out ones, in eval mode. |O| is at least 1e-4, negative G are 0, and if no
branch generalizes all weights are the same. Weights found elsewhere, such as those that the paper
prints, are given by `weights`, and nothing is estimated.

Published is what stands above. `as_released=True` is MultiBench's default, which has no increments:
G = L^V(N) and O = max(L^V(N) - L^T(N), 1e-4). The authors' own code takes weights by hand. A
super-epoch of 10 is what others ran online, and 8 % held out is MultiBench's.

Deviations: copies train with a fresh optimizer of the same kind at its present learning rate, and
only the branch at hand is computed. Online, held-out rows are never trained on, or the next
estimate would take memory for generalization; offline they are, once the estimate is made. There is
no fine-tuning of heads at the end. What the estimates take is counted: a pass of all modalities'
own branches is one forward, and so is one of the fused branch.

Any number of modalities (M + 1 branches), any criterion, also that of several labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..holdout import hold_out
from ..method import Criterion, Method, Terms, require_at_least
from ..model import Multimodal
from ..types import Batch, Data, Output

FUSED = "fused"  # the branch of all modalities together
LEAST = 1e-4  # of |O|, which is divided by

Copies = Mapping[str, tuple[Multimodal, Optimizer]]


def blend(train_n: Tensor, train_N: Tensor, valid_n: Tensor, valid_N: Tensor) -> Tensor:
    """The weights w [K], from each branch's losses at the two ends of a super-epoch."""
    generalized = valid_n - valid_N
    overfitted = (valid_N - train_N) - (valid_n - train_n)
    return normalized(generalized, overfitted.abs().clamp_min(LEAST))


def blend_of_ends(train_N: Tensor, valid_N: Tensor) -> Tensor:
    """The weights w [K] as MultiBench has them, from the losses at the end alone."""
    return normalized(valid_N, (valid_N - train_N).clamp_min(LEAST))


def normalized(generalized: Tensor, overfitted: Tensor) -> Tensor:
    """G / O^2 over its sum. Negative G count as 0; without any positive one all are the same."""
    raw = generalized.clamp_min(0) / overfitted.square()
    whole = raw.sum()
    return torch.where(whole > 0, raw / whole, torch.full_like(raw, 1 / len(raw)))


def share_for(classes: int, samples: int) -> float:
    """A share, in hundredths, that holds out at least so many rows as there are classes."""
    return math.ceil(100 * classes / samples) / 100


def branch_logits(model: Multimodal, branch: str, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a branch says; of a modality's own, nothing but its encoder is run."""
    if branch == FUSED:
        output: Output = model(inputs)
        return output.fused
    own: Tensor = model.encoders[branch](inputs[branch])
    features = {
        m: own if m == branch else own.new_zeros(len(own), width)
        for m, width in model.fusion.widths.items()
    }
    return model.fusion(features)[0][branch]


class GBlend(Method):
    """The losses of all branches, weighted by how well each generalizes when it is trained alone.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and target, a mean over samples.
        super_epoch: epochs between two estimates, and of the trainings that they take.
        online: estimate before every super-epoch, and not only before the first.
        share: of train, what is held out for the estimate.
        batch_size: of the trainings that an estimate takes.
        weights: of every modality and of "fused", in place of an estimate.
        as_released: weights of MultiBench.
    """

    fusion: ClassVar[str] = "branches"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        super_epoch: int = 10,
        online: bool = True,
        share: float = 0.08,
        batch_size: int = 64,
        weights: Mapping[str, float] | None = None,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        require_at_least("gblend", 1, super_epoch=super_epoch)
        require_at_least("gblend", 2, batch_size=batch_size)
        if not 0 < share < 1:
            raise ValueError(f"gblend: share is {share}; it must lie in (0, 1), .08 for instance")
        self.branches = (*model.modalities, FUSED)
        if weights is not None:
            require_weights(weights, self.branches)
        self.super_epoch = super_epoch
        self.online = online
        self.share = share
        self.batch_size = batch_size
        self.given = weights is not None
        self.as_released = as_released
        equal = dict.fromkeys(self.branches, 1 / len(self.branches))
        start = [(weights or equal)[branch] for branch in self.branches]
        self.weights: Tensor
        self.register_buffer("weights", torch.tensor(start, device=self.device))
        self.rest: Tensor | None = None  # the rows of train that are trained on; None is all

    def begin_epoch(self, epoch: int, data: Data) -> None:
        if self.given:
            return
        train = data.splits["train"]
        rest, held = map(torch.as_tensor, hold_out(train.target, self.share, 0, train.group))
        if len(held) < data.classes:
            raise ValueError(
                f"gblend: share is {self.share}, which holds {len(held)} rows out; that is too few "
                f"for {data.classes} classes, use share={share_for(data.classes, len(train)):g}"
            )
        self.rest = rest if self.online else None
        if epoch == 0 or (self.online and epoch % self.super_epoch == 0):
            self.weights.copy_(self.estimate(data, rest, held))

    def sampler(self, epoch: int) -> Tensor | None:
        if self.rest is None:
            return None
        return self.shuffled(self.rest)

    def loss(self, output: Output, batch: Batch) -> Terms:
        said = {**output.logits, FUSED: output.fused}
        parts = zip(self.branches, self.weights, strict=True)
        return {branch: w * self.criterion(said[branch], batch.target) for branch, w in parts}

    # The estimate

    def estimate(self, data: Data, rest: Tensor, held: Tensor) -> Tensor:
        """The weights, from training a copy for each branch alone."""
        copies = {branch: self.twin() for branch in self.branches}
        train_n, valid_n = (self.measured(copies, data, rows) for rows in (rest, held))
        self.train_alone(copies, data, rest)
        train_N, valid_N = (self.measured(copies, data, rows) for rows in (rest, held))
        if self.as_released:
            return blend_of_ends(train_N, valid_N)
        return blend(train_n, train_N, valid_n, valid_N)

    def train_alone(self, copies: Copies, data: Data, rows: Tensor) -> None:
        """A super-epoch in which every copy learns from the loss of its own branch."""
        chance = self.generator("estimate")
        for _ in range(self.super_epoch):
            order = rows[torch.randperm(len(rows), generator=chance)]
            for part in torch.split(order, self.batch_size):
                if len(part) == 1 < len(rows):  # batch norm needs two
                    continue
                batch = data.batch("train", part).to(self.device)
                for branch, (model, optimizer) in copies.items():
                    logits = branch_logits(model, branch, batch.inputs)
                    self.criterion(logits, batch.target).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                self.counts.update(forwards=2, backwards=2, updates=2)

    @torch.no_grad()
    def measured(self, copies: Copies, data: Data, rows: Tensor) -> Tensor:
        """The mean loss of every branch [K], in eval mode."""
        for model, _ in copies.values():
            model.eval()
        sums = torch.zeros(len(copies), dtype=torch.float64, device=self.device)
        for part in torch.split(rows, self.batch_size):
            batch = data.batch("train", part).to(self.device)
            logits = [branch_logits(c[0], k, batch.inputs) for k, c in copies.items()]
            losses = [self.criterion(z, batch.target) for z in logits]
            sums += len(part) * torch.stack(losses)
            self.counts["forwards"] += 2
        for model, _ in copies.values():
            model.train()
        return sums / len(rows)


def require_weights(weights: Mapping[str, float], branches: tuple[str, ...]) -> None:
    """An error unless there is a weight for every branch, and for nothing else."""
    if sorted(weights) != sorted(branches):
        raise ValueError(
            f"gblend: weights are of {', '.join(sorted(weights)) or 'nothing'}; the branches are "
            f"{', '.join(branches)}"
        )
    require_at_least("gblend: weights", 0, **weights)
