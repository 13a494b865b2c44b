"""PMR: prototypical modality rebalance (CVPR 2023).

A prototype is the mean feature of a class. How well a sample is classified by its distances to the
prototypes tells how far a modality has come; the slow one gets the loss of that classifier as well,
and early in training the leader is kept from being too sure.

| paper                                                | here                                    |
|------------------------------------------------------|-----------------------------------------|
| c^k, mean of h over class k; c <- (1-eps) c' + eps c | `class_means`, `begin_epoch`, `keep`    |
| u(i, k) = -||h(i) - c^k||                            | `similarities`                          |
| s = sum_i softmax(u(i))[y_i]                         | `confidence` of u                       |
| beta, gamma = clip(1/rho - 1), clip(rho - 1) to 0, 1 | `demands`                               |
| alpha beta CE(u_a) + alpha gamma CE(u_v)             | term "prototypes"                       |
| -mu gamma H(softmax u_a) - mu beta H(softmax u_v)    | `leads`, term "entropy", until E_r      |

with rho = s_a / s_v. Prototypes are constants of an epoch, and all coefficients are constants of a
step. The prototypes of epoch 0 are those of the untrained network; they are replaced after it, and
only from then on is a share `keep` of the old ones kept.

Published is what stands above. mu and E_r are not: .01 and 10 are those of a public port.
`as_released=True` is the released loop: a binary switch, alpha for the slow modality, and no
entropy. Its defaults (alpha 1, eps .2, until epoch 100) are ours; its commands for CREMA-D have
alpha 2 (3 for FiLM and gated fusion), eps 0, until epoch 70.

Deviations: a tenth of the rows, and not of the batches, makes the prototypes, and a row of every
class is always among them (released: NaN for a class that is missing). The distance has gradient
zero at a prototype, where the root has none.

For any number of modalities (ours): the weight of a modality is clip(max_j s_j / s_m - 1), with the
leader's s in place of the other's, and the entropy of the leader is weighted with the mean of the
others' weights. With two this is the paper. Needs one class per sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..method import (
    Criterion,
    Method,
    Terms,
    confidence,
    refuse_several_labels,
    require_at_least,
    window,
)
from ..model import Multimodal
from ..types import Batch, Data, Output


def class_sums(features: Tensor, target: Tensor, classes: int) -> Tensor:
    """The sum of the features [n, D] of every class: [C, D]."""
    return F.one_hot(target, classes).to(features.dtype).mT @ features


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """Prototypes [C, D]; zero for a class that has no sample."""
    return sums / counts.clamp_min(1).unsqueeze(1)


def similarities(features: Tensor, prototypes: Tensor) -> Tensor:
    """u [n, C]: minus the distance to every prototype."""
    # By differences: the faster form by products loses the digits of small distances.
    difference = features.unsqueeze(1) - prototypes
    return -cast(Tensor, torch.linalg.vector_norm(difference, dim=2))


def demands(scores: Tensor, *, binary: bool = False) -> Tensor:
    """How much each modality [M] needs help, from 0 for the leader to 1."""
    leader = scores.max()
    if binary:
        return (scores < leader).to(scores.dtype)
    tiny = torch.finfo(scores.dtype).tiny
    return (leader / scores.clamp_min(tiny) - 1).clamp(0, 1)


def leads(scores: Tensor) -> Tensor:
    """How far the leader is ahead: the others' mean demand; 0 for all who do not lead."""
    others = max(len(scores) - 1, 1)
    return (scores == scores.max()).to(scores.dtype) * demands(scores).sum() / others


def entropy(similarity: Tensor) -> Tensor:
    """H(softmax u), a mean over samples."""
    logs = similarity.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()


def rows_for_prototypes(
    target: Tensor, classes: int, share: float, generator: torch.Generator
) -> Tensor:
    """This share of all rows, drawn at random, and a row at least of every class that there is."""
    shuffled = torch.randperm(len(target), generator=generator)
    take = max(1, int(share * len(target)))
    place = torch.arange(len(target))
    first = torch.full((classes,), len(target))
    first = first.scatter_reduce(0, target[shuffled], place, "amin")  # where a class first comes
    first = first[first < len(target)]
    return shuffled[torch.cat([place[:take], first[first >= take]])]


class PMR(Method):
    """The slow modality is trained to come close to its prototypes.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and class ids.
        alpha: the weight of the loss on prototypes.
        keep: the share eps of the old prototypes that stays.
        share: of the rows of train, those that make the prototypes.
        entropy: the weight mu of the leader's entropy.
        entropy_epochs: E_r, for how many epochs it is raised.
        starts: the first epoch in which anything but the fused loss is trained.
        ends: the last one.
        as_released: a binary switch and no entropy.
    """

    fusion: ClassVar[str] = "concat"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        alpha: float = 1.0,
        keep: float = 0.2,
        share: float = 0.1,
        entropy: float = 0.01,
        entropy_epochs: int = 10,
        starts: int = 0,
        ends: int = 100,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        require_at_least("pmr", 0, alpha=alpha, entropy=entropy, entropy_epochs=entropy_epochs)
        if not 0 <= keep < 1:
            raise ValueError(f"pmr: keep is {keep}; it must lie in [0, 1), .2 for instance")
        if not 0 < share <= 1:
            raise ValueError(f"pmr: share is {share}; it must lie in (0, 1], .1 for instance")
        refuse_several_labels("pmr", criterion, "a prototype stands for")
        self.alpha = alpha
        self.keep = keep
        self.share = share
        self.entropy = entropy
        self.entropy_epochs = entropy_epochs
        self.window = window("pmr", starts, ends)
        self.as_released = as_released
        self.epoch = 0
        self.prototypes: dict[str, Tensor] = {}  # [C, D] per modality; none before the first epoch

    def begin_epoch(self, epoch: int, data: Data) -> None:
        self.epoch = epoch
        if epoch >= self.window.stop:  # from here on it is joint training, and costs as much
            self.prototypes = {}
            return
        fresh = self.means(data)
        if epoch > 1 and self.prototypes:
            fresh = {m: c.lerp(self.prototypes[m], self.keep) for m, c in fresh.items()}
        self.prototypes = fresh

    def means(self, data: Data) -> dict[str, Tensor]:
        """The prototypes of the present network, in eval mode."""
        target = torch.from_numpy(data.splits["train"].target.astype("int64"))
        chance = self.generator("prototypes")
        rows = rows_for_prototypes(target, data.classes, self.share, chance)
        sums: dict[str, Tensor] = {}
        counts = torch.zeros(data.classes, device=self.device)
        for output, batch in self.survey(data, rows):
            counts += F.one_hot(batch.target, data.classes).sum(dim=0)
            for modality, h in output.features.items():
                found = class_sums(h, batch.target, data.classes)
                sums[modality] = sums[modality] + found if modality in sums else found
        return {modality: class_means(found, counts) for modality, found in sums.items()}

    def loss(self, output: Output, batch: Batch) -> Terms:
        terms = super().loss(output, batch)
        if not self.prototypes or self.epoch not in self.window:
            return terms
        near = {m: similarities(h, self.prototypes[m]) for m, h in output.features.items()}
        return {**terms, **self.rebalance(near, batch.target)}

    def rebalance(self, near: Mapping[str, Tensor], target: Tensor) -> Terms:
        """The terms that the prototypes add."""
        with torch.no_grad():
            scores = torch.stack([confidence(u, target) for u in near.values()])
            weights = self.alpha * demands(scores, binary=self.as_released)
            raised = self.entropy * leads(scores)
        losses = torch.stack([F.cross_entropy(u, target) for u in near.values()])
        terms = {"prototypes": (weights * losses).sum()}
        if not self.as_released and self.epoch < self.entropy_epochs:
            sureness = torch.stack([-entropy(u) for u in near.values()])
            terms["entropy"] = (raised * sureness).sum()
        return terms

    def get_extra_state(self) -> dict[str, Any]:
        own = {"epoch": self.epoch, "prototypes": dict(self.prototypes)}
        return {**super().get_extra_state(), **own}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.epoch = state["epoch"]
        self.prototypes = dict(state["prototypes"])
