"""ReconBoost: Boosting Can Achieve Modality Reconcilement (ICML 2024).

Modalities take turns. In a stage one of them learns what the ensemble of the others lacks, and then
all are rectified together.

| equation                                                                     | where        |
|------------------------------------------------------------------------------|--------------|
| F = b sum_m z_m, b learned, one two-layer head for all                       | `Boosted`    |
| q = softmax(b sum_{j != m} z_j), detached                                    | `others`     |
| L = 1/C (w1 CE(p_m, y) - w2 sum_c q_c (-log p_mc)), as published             | `residual`   |
| L = 1/C (w1 - w2 q_y) CE(p_m, y), as released                                | `residual`   |
| + alpha MSE(softmax z_m, softmax z_prev), prev the learner of the last stage | `ReconBoost` |
| then CE(F, y) on everything                                                  | `ReconBoost` |

At stage 0 there is no ensemble yet: q is 1 at the label, and there is no learner to agree with.
Each phase starts the optimizer anew, by clearing its state. As published, the agreement draws the
learner towards the previous one, which is held fixed; in the released code both sides are
detached, so the term has no gradient (`as_released=True`).

Modalities take turns in the order of their names, and the previous learner is the one before in
that cycle. Any number of modalities; with one, there is never an ensemble to boost. For targets
that are class ids.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..fusions.boosted import Boosted
from ..method import Criterion, Method, Terms, require_at_least, require_cross_entropy
from ..model import Multimodal
from ..types import Batch, Data, Output


def residual(
    logits: Tensor, ensemble: Tensor, target: Tensor, weights: tuple[float, float], *, full: bool
) -> Tensor:
    """The loss of a learner, given the probabilities q [n, C] of the others' ensemble.

    With `full` all of q counts, else its entry at the label.
    """
    learned, boosted = weights
    log_p = logits.log_softmax(dim=1)
    own = -log_p.gather(1, target[:, None])[:, 0]
    at_label = ensemble.gather(1, target[:, None])[:, 0]
    theirs = -(ensemble * log_p).sum(dim=1) if full else at_label * own
    return (learned * own - boosted * theirs).mean() / logits.shape[1]


def others(logits: dict[str, Tensor], modality: str, scale: Tensor) -> Tensor:
    """q [n, C]: what the ensemble of the other modalities predicts."""
    rest = [z for name, z in logits.items() if name != modality]
    return (scale * torch.stack(rest).sum(dim=0)).softmax(dim=1).detach()


class ReconBoost(Method):
    """Modalities boost one another in stages; see the module for the equations."""

    fusion = "boosted"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        stage_epochs: int = 4,
        joint_epochs: int = 4,
        weights: tuple[float, float] = (5.0, 1.0),
        alpha: float = 0.5,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        if not isinstance(model.fusion, Boosted):
            raise ValueError(
                'reconboost trains a scaled sum of logits; use fusion "boosted", '
                "Multimodal(encoders, Boosted(widths, classes))"
            )
        require_cross_entropy("reconboost", criterion)
        require_at_least("reconboost", 1, stage_epochs=stage_epochs)
        require_at_least("reconboost", 0, joint_epochs=joint_epochs, alpha=alpha)
        learned, boosted = weights
        if boosted < 0 or learned <= boosted:
            raise ValueError(
                f"reconboost: weights is {learned:g},{boosted:g}; the first must be larger than "
                "the second, or a modality would unlearn what the others know, and none negative"
            )
        self.stage_epochs = stage_epochs
        self.joint_epochs = joint_epochs
        self.weights = weights
        self.alpha = alpha
        self.as_released = as_released
        self._stage, self._joint = 0, False

    def begin_epoch(self, epoch: int, data: Data) -> None:
        self._stage, within = divmod(epoch, self.stage_epochs + self.joint_epochs)
        self._joint = within >= self.stage_epochs
        if within in (0, self.stage_epochs):
            self.optimizer.state.clear()

    @property
    def scale(self) -> Tensor:
        """b."""
        return cast(Boosted, self.model.fusion).scale

    @property
    def learner(self) -> str:
        """The modality of the present stage."""
        return self._at(self._stage)

    def _at(self, stage: int) -> str:
        names = self.model.modalities
        return names[stage % len(names)]

    def loss(self, output: Output, batch: Batch) -> Terms:
        if self._joint:
            return super().loss(output, batch)
        learner, target = self.learner, batch.target
        own = output.logits[learner]
        if self._stage == 0 or len(output.logits) == 1:
            ensemble = F.one_hot(target, own.shape[1]).to(own)
        else:
            ensemble = others(output.logits, learner, self.scale)
        full = not self.as_released
        terms = {"residual": residual(own, ensemble, target, self.weights, full=full)}
        if self._stage > 0:
            previous = output.logits[self._at(self._stage - 1)].detach().softmax(dim=1)
            mine = own.detach() if self.as_released else own
            terms["agreement"] = self.alpha * F.mse_loss(mine.softmax(dim=1), previous)
        return terms

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "stage": self._stage, "joint": self._joint}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self._stage, self._joint = state["stage"], state["joint"]
