"""MLA: Multimodal Representation Learning by Alternating Unimodal Adaptation (CVPR 2024).

The modalities are trained one after the other in every batch, all through one shared head W. The
head's gradient is projected away from directions that other modalities have used, and the
prediction weighs modalities by how certain they are.

| equation                                                          | where              |
|-------------------------------------------------------------------|--------------------|
| L_m = CE(W h_m, y), a step for each m in turn                     | `MLA.step`         |
| k = P r, P <- P - k k^T / (alpha + r^T k), r = mean of h_m        | `projection`       |
| dW <- dW (P / ||P||_F)^T                                          | `MLA.modulate_head`|
| alpha = 0.1^(1 + the part of the epoch that is over)              | `MLA.step`         |
| w_m = exp(max_j e_j - e_m) / sum, e_m the entropy of softmax z_m  | `certainty`        |

Published is the default. The released code never executes the projection, because it looks for a
parameter under a name that the head does not have, and it takes the entropy over the batch in place
of the classes, so that each modality has one weight for a whole batch, which depends on who else is
in it. `as_released=True` does the same.

The order of the modalities is the one of their names, and it matters: they take turns. Features of
different widths are first mapped to the largest (ours). Any number of modalities. Without
`begin_epoch`, in a loop of one's own, alpha stays at .1, as it is when an epoch begins.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..fusions.shared import Shared
from ..method import Criterion, Method, Terms
from ..model import Multimodal
from ..types import Batch, Data, Output


def projection(matrix: Tensor, mean: Tensor, alpha: float) -> Tensor:
    """P after the features with this mean [D] have been seen."""
    k = matrix @ mean
    return matrix - torch.outer(k, k) / (alpha + mean @ k)


def normalized(matrix: Tensor) -> Tensor:
    """P / ||P||_F."""
    return matrix / matrix.square().sum().sqrt()


def certainty(logits: Tensor) -> Tensor:
    """w [M, n]: the weight of every modality in every sample, from logits [M, n, C]."""
    return (-entropies(logits, over=-1).sum(dim=-1)).softmax(dim=0)


def batch_certainty(logits: Tensor) -> Tensor:
    """As released, w [M, 1]: the softmax is over the samples, and the sum over everything."""
    return (-entropies(logits, over=1).sum(dim=(1, 2))).softmax(dim=0).unsqueeze(1)


def entropies(logits: Tensor, *, over: int) -> Tensor:
    """-p log p, p the softmax over an axis."""
    log_p = logits.log_softmax(dim=over)
    return -log_p.exp() * log_p


class MLA(Method):
    """A step for every modality in turn, through one head; see the module for the equations."""

    fusion = "shared"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        shared = model.fusion
        if not isinstance(shared, Shared) or not isinstance(shared.head, nn.Linear):
            raise ValueError(
                'mla trains all modalities through one linear head; use fusion "shared", '
                "Multimodal(encoders, Shared(widths, classes))"
            )
        self.as_released = as_released
        weight = shared.head.weight
        self.register_buffer("directions", torch.eye(weight.shape[1]).to(weight))
        self.directions: Tensor  # P
        self._begun = False  # the very first gradient is left as it is
        # Of this epoch so far, and in all; without `begin_epoch` there is no end of it in sight.
        self._seen, self._samples = 0, math.inf

    # The model owns its fusion; a second reference here would put it into the state twice.

    @property
    def shared(self) -> Shared:
        return cast(Shared, self.model.fusion)

    @property
    def head(self) -> nn.Linear:
        return cast(nn.Linear, self.shared.head)

    def begin_epoch(self, epoch: int, data: Data) -> None:
        self._seen, self._samples = 0, len(data.splits["train"])

    def step(self, batch: Batch) -> dict[str, Tensor]:
        features = self(batch.inputs).features
        terms: Terms = {}
        for modality, h in features.items():
            logits = self.shared.logits(modality, h)
            terms[modality] = self.criterion(logits, batch.target)
            self.backward({modality: terms[modality]})
            if not self.as_released:
                self.modulate_head(self.shared.aligned(modality, h))
            self.update(Output({modality: h}, {modality: logits}, logits), batch)
        self._seen += len(batch.target)
        return self.report(terms)

    @torch.no_grad()
    def modulate_head(self, taken: Tensor) -> None:
        """Project the head's gradient; `taken` [n, D] is what the head was given."""
        gradient = self.head.weight.grad
        if self._begun and gradient is not None:
            alpha = 0.1 ** (1 + self._seen / self._samples)
            self.directions = projection(self.directions, taken.mean(dim=0), alpha)
            self.head.weight.grad = gradient @ normalized(self.directions).T
        self._begun = True

    def predict(self, output: Output) -> Tensor:
        logits = torch.stack(list(output.logits.values()))
        weights = batch_certainty(logits) if self.as_released else certainty(logits)
        return (weights[..., None] * logits).sum(dim=0)

    def get_extra_state(self) -> dict[str, Any]:
        turn = {"begun": self._begun, "seen": self._seen, "samples": self._samples}
        return {**super().get_extra_state(), "turn": turn}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        turn = state["turn"]
        self._begun, self._seen, self._samples = turn["begun"], turn["seen"], turn["samples"]
