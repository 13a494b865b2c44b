"""CGGM: classifier-guided gradient modulation for multimodal learning (NeurIPS 2024).

A classifier beside each encoder watches how fast the modality gets better. Encoders of modalities
that get better faster than the others are held back, and the gradient of the fusion's head is drawn
towards the direction of those modalities' classifiers that are behind.

| paper                                                        | here                          |
|--------------------------------------------------------------|-------------------------------|
| a classifier c_m on the detached h_m, trained by CE          | `CGGM.classifiers`            |
| acc_m(t) on the batch, D_m = acc_m(t) - acc_m(t - 1)         | `accuracy`, `CGGM.accuracies` |
| B_m = (sum D - D_m) / sum D                                  | `balances`                    |
| gradients of encoder m times rho B_m, then clipped           | `CGGM.modulate`               |
| L_gm = mean_m (|B_m| - B_m cos(grad of head, grad of c_m))   | `disagreement`                |
| L = CE(z, y) + lambda L_gm                                   | `CGGM.loss`                   |

with acc_m(0) = 0. The gradient of the head with respect to W_m, the weights of h_m in z, is
(softmax z - Y)^T h_m / n. So L_gm is differentiated without a second backward (`head_gradient`);
this form is used for every fusion. The classifier's gradient is a constant in it.

Published is the default. In the released code the cosine is between the weights of the heads and
not between their gradients, and L_gm has the B of the step before: `as_released=True`, which needs
the fusion `concat`.

Deviations. The published classifiers are small transformers on sequences; for encoders with one
vector per sample they are linear and start at zero. B_m explodes or turns negative where
modalities move in opposite directions, which batch accuracies often do by chance; it is clipped to
[0, `limit`] (ours). One is the largest that it gets where all move the same way. As released there
is no limit. Any number of modalities; one of them alone has nothing to be balanced with, and is
trained jointly. Several labels are natural: accuracy is then the share of labels that are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from .. import lists
from ..by_modality import ByModality
from ..fusions.linear import Concat
from ..method import Criterion, Method, Terms, require_at_least, require_positive
from ..model import Multimodal
from ..types import Batch, Output


def accuracy(logits: Tensor, target: Tensor, *, multilabel: bool = False) -> Tensor:
    """The share of samples, or of labels, that are right."""
    right = (logits > 0) == target.bool() if multilabel else logits.argmax(dim=1) == target
    return right.to(logits.dtype).mean()


def balances(now: Tensor, before: Tensor, limit: float | None = None) -> Tensor:
    """B [M] from the accuracies of two steps, clipped to [0, limit] if there is one."""
    gains = now - before
    together = gains.sum()
    found = (together - gains) / (together + 1e-8)
    return found if limit is None else found.clamp(0, limit)


def residual(logits: Tensor, target: Tensor, *, multilabel: bool = False) -> Tensor:
    """The derivative [n, C] of the loss by the logits, up to a factor."""
    if multilabel:
        return logits.sigmoid() - target
    classes = torch.arange(logits.shape[1], device=logits.device)
    return logits.softmax(dim=1) - (target.unsqueeze(1) == classes).to(logits.dtype)


def head_gradient(residual: Tensor, features: Tensor) -> Tensor:
    """That of a linear head [C, D] on these features, whose output is added to the logits."""
    return residual.mT @ features / len(features)


def disagreement(balance: Tensor, joint: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Tensor:
    """L_gm, from two matrices of each modality that should point the same way."""
    cosines = [F.cosine_similarity(joint[m].flatten(), own[m].flatten(), dim=0) for m in joint]
    return (balance.abs() - balance * torch.stack(cosines)).mean()


class CGGM(Method):
    """Encoders are scaled by what their classifiers have lately gained.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and target.
        rho: what the balances are multiplied with.
        strength: the weight lambda of L_gm.
        limit: of the balances; None for none.
        clip: of the norm of all gradients; None never clips.
        classifier_lr: the learning rate of the classifiers' own Adam.
        as_released: weights in place of gradients in L_gm, the last step's B, and no limit.
    """

    fusion: ClassVar[str] = "concat"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        rho: float = 1.3,
        strength: float = 0.2,
        limit: float | None = 1.0,
        clip: float | None = 0.8,
        classifier_lr: float = 5e-4,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        require_positive("cggm", rho=rho, limit=limit, clip=clip, classifier_lr=classifier_lr)
        require_at_least("cggm", 0, strength=strength)
        if as_released and not isinstance(model.fusion, Concat):
            raise ValueError(
                "cggm: as released it compares the weights of classifiers with slices of one head; "
                'give the model the fusion "concat", or leave out as_released'
            )
        self.rho = rho
        self.strength = strength
        self.limit = None if as_released else limit
        self.clip = clip
        self.as_released = as_released
        self.multilabel = criterion is F.binary_cross_entropy_with_logits
        weight = next(model.parameters()).detach()
        names = model.modalities if len(model.modalities) > 1 else ()
        self.classifiers = ByModality({m: self.classifier(m).to(weight) for m in names})
        self.register_buffer("accuracies", weight.new_zeros(len(names)))
        self.accuracies: Tensor
        self.register_buffer("balance", weight.new_zeros(len(names)))  # B of the latest step
        self.balance: Tensor
        if names:
            adam = torch.optim.Adam(self.classifiers.parameters(), classifier_lr, fused=True)
            self.others["classifiers"] = adam

    def classifier(self, modality: str) -> nn.Module:
        """One that knows nothing yet."""
        fusion = self.model.fusion
        made = nn.utils.skip_init(nn.Linear, fusion.widths[modality], fusion.classes)
        for parameter in made.parameters():
            nn.init.zeros_(parameter)
        return made

    def loss(self, output: Output, batch: Batch) -> Terms:
        terms = super().loss(output, batch)
        if not self.classifiers:
            return terms
        known = {m: c(output.features[m].detach()) for m, c in self.classifiers.items()}
        before = self.balance.clone()
        self.watch(known, batch.target)
        if self.as_released:
            apart = disagreement(before, *self.weights())
        else:
            apart = disagreement(self.balance.clone(), *self.gradients(output, known, batch.target))
        losses = [self.criterion(logits, batch.target) for logits in known.values()]
        own = torch.stack(losses).sum()  # reaches the classifiers, and nothing else
        return {**terms, "direction": self.strength * apart, "classifiers": own}

    @torch.no_grad()
    def watch(self, known: Mapping[str, Tensor], target: Tensor) -> None:
        """How much better each classifier has become since the last step."""
        found = [accuracy(logits, target, multilabel=self.multilabel) for logits in known.values()]
        now = torch.stack(found)
        self.balance.copy_(balances(now, self.accuracies, self.limit))
        self.accuracies.copy_(now)

    def gradients(
        self, output: Output, known: Mapping[str, Tensor], target: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Of the fusion's head and of the classifiers, by modality."""
        fused = residual(output.fused, target, multilabel=self.multilabel)
        joint = {m: head_gradient(fused, output.features[m]) for m in known}
        with torch.no_grad():
            rest = {m: residual(z, target, multilabel=self.multilabel) for m, z in known.items()}
            own = {m: head_gradient(r, output.features[m]) for m, r in rest.items()}
        return joint, own

    def weights(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """As released: the weights of the same."""
        assert isinstance(self.model.fusion, Concat)
        own = {m: layer.get_parameter("weight").detach() for m, layer in self.classifiers.items()}
        return self.model.fusion.slices(), own

    @torch.no_grad()
    def modulate(self, output: Output, batch: Batch) -> None:
        for modality, balance in zip(self.classifiers, self.balance, strict=True):
            parameters = self.model.encoders[modality].parameters()
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                lists.multiply_(gradients, self.rho * balance)
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def update(self, output: Output, batch: Batch) -> None:
        super().update(output, batch)
        for other in self.others.values():
            other.step()
            other.zero_grad()
            self.counts["updates"] += 1
