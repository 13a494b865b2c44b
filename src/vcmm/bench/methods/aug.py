"""AUG: Rethinking Multimodal Learning from the Perspective of Mitigating Classification Ability
Disproportion (NeurIPS 2025).

Modalities are trained in turn, and the one that lags is given more branches, each of which learns
what the sum of its elders lacks.

| equation                                                                    | where           |
|-----------------------------------------------------------------------------|-----------------|
| f_mi = W_o ReLU(U_mi h_m), z_m = sum_i f_mi, W_o shared by all              | `Growing`       |
| one branch: CE(z_m, y)                                                      | `boosting_loss` |
| more: CE(z_m) + CE(o) + CE(a) - kappa CE(a, y * softmax(o)),                | `boosting_loss` |
|   a the last branch, o the sum of the others, detached in the target alone  |                 |
| s_m = sum over an epoch of softmax(z_m)[y]; max s / min s > 1 + margin:     | `AUG`           |
|   one more branch for the last, after epoch 0 and every `every` epochs      |                 |
| z = sum_m mu_m z_m                                                          | `AUG.predict`   |

The released coefficient kappa is .5, and the default here. Published mu is .4 for audio and .6 for
video; by default the modalities have equal shares. In the released code a new branch is in no group
of the optimizer, so it stays at its initial values (`as_released=True` freezes it). The published
schedule is 200 epochs with a look at every tenth of them, hence every = 20.

Features of all modalities are computed before the first one's step; later ones meet the head as it
has become. The order is the one of the names. For targets that are class ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..fusions.growing import Growing
from ..method import (
    Criterion,
    Method,
    Terms,
    confidence,
    require_at_least,
    require_cross_entropy,
    total,
)
from ..model import Multimodal
from ..types import Batch, Data, Output


def boosting_loss(parts: Sequence[Tensor], target: Tensor, kappa: float) -> Terms:
    """The terms of one modality's loss, from the logits [n, C] of its branches, oldest first."""
    *elders, last = parts
    if not elders:
        return {"all": F.cross_entropy(last, target)}
    before = torch.stack(elders).sum(dim=0)
    truth = F.one_hot(target, last.shape[1]).to(last)
    known = truth * before.detach().softmax(dim=1)
    return {
        "all": F.cross_entropy(before + last, target),
        "before": F.cross_entropy(before, target),
        "last": F.cross_entropy(last, target),
        "known": -kappa * F.cross_entropy(last, known),
    }


def lagging(scores: Mapping[str, Tensor], margin: float) -> str | None:
    """The modality with the lowest score, if the highest is further above it than the margin."""
    values = {modality: float(score) for modality, score in sorted(scores.items())}
    last = min(values, key=lambda modality: values[modality])
    return last if max(values.values()) > (1 + margin) * values[last] else None


class AUG(Method):
    """Modalities in turn, with more branches for the one that lags; see the module."""

    fusion = "growing"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        kappa: float = 0.5,
        margin: float = 0.01,
        every: int = 20,
        shares: Mapping[str, float] | None = None,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        if not isinstance(model.fusion, Growing):
            raise ValueError(
                'aug adds branches to a modality; use fusion "growing", '
                "Multimodal(encoders, Growing(widths, classes))"
            )
        require_cross_entropy("aug", criterion)
        require_at_least("aug", 0, kappa=kappa, margin=margin)
        require_at_least("aug", 1, every=every)
        names = model.modalities
        if shares is not None and set(shares) != set(names):
            raise ValueError(
                f"aug: shares names {', '.join(shares)}; the modalities are {', '.join(names)}"
            )
        require_at_least("aug: shares", 0, **(shares or {}))
        self.kappa = kappa
        self.margin = margin
        self.every = every
        self.shares = shares or dict.fromkeys(names, 1 / len(names))
        self.as_released = as_released
        # Added up on the device, and read once an epoch.
        self.register_buffer("scores", torch.zeros(len(names), device=self.device))
        self.scores: Tensor

    @property
    def growing(self) -> Growing:
        """The model's fusion; a second reference would put it into the state twice."""
        return cast(Growing, self.model.fusion)

    def begin_epoch(self, epoch: int, data: Data) -> None:
        over = epoch - 1
        if over == 0 or (over > 0 and epoch % self.every == 0):
            scores = dict(zip(self.model.modalities, self.scores, strict=True))
            if (modality := lagging(scores, self.margin)) is not None:
                self._grow(modality)
        self.scores.zero_()

    def _grow(self, modality: str) -> None:
        branch = self.growing.grow(modality, self.generator("branches"))
        if self.as_released:
            branch.requires_grad_(False)
        else:
            self.adopt(branch, modality)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        features = self(batch.inputs).features
        terms: Terms = {}
        for position, (modality, h) in enumerate(features.items()):
            parts = self.growing.parts(modality, h)
            logits = torch.stack(parts).sum(dim=0)
            own = boosting_loss(parts, batch.target, self.kappa)
            terms[modality] = total(own)
            self.backward({modality: terms[modality]})
            self.scores[position] += confidence(logits.detach(), batch.target)
            self.update(Output({modality: h}, {modality: logits}, logits), batch)
        return self.report(terms)

    def predict(self, output: Output) -> Tensor:
        weighted = [self.shares[modality] * z for modality, z in output.logits.items()]
        return torch.stack(weighted).sum(dim=0)

    def get_extra_state(self) -> dict[str, Any]:
        sizes = {modality: self.growing.size(modality) for modality in self.model.modalities}
        return {**super().get_extra_state(), "branches": sizes}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Torch sets this before it loads the branches, so they are there by then."""
        for modality, size in state["branches"].items():
            while self.growing.size(modality) < size:
                self._grow(modality)
        super().set_extra_state(state)
