"""OGM-GE: balanced multimodal learning via on-the-fly gradient modulation (CVPR 2022).

The gradients of the encoder that is ahead are made smaller, by how far it is ahead in the batch.
GE ("generalization enhancement") adds noise to the gradients, as large as they were before.

| paper                                                       | here            |
|-------------------------------------------------------------|-----------------|
| s_m = sum_i softmax(z_m(i))[y_i]                            | `confidence`    |
| rho_m = s_m / s_j, and for M modalities the mean over j     | `ratios`        |
| k_m = 1 - tanh(alpha rho_m) where rho_m > 1, else 1         | `coefficients`  |
| g <- k_m g + N(0, std(g)), with `noise`                     | `modulate_`     |

in the epochs from `starts` to `ends`. z_m is only looked at: what is trained is CE(z, y). The noise
also comes to encoders that are not ahead, with k = 1. For three and more modalities the mean of the
ratios is the authors' advice.

The released code does it to 4-D gradients, the kernels of images, and to nothing else. The default
is every weight tensor of an encoder with two dimensions or more (ours), so that other encoders are
served; biases and norms are left alone as there. alpha is .8 in the released command for CREMA-D
and .1 for VGGSound. `as_released=True` takes 4-D gradients alone, and in an exact tie it scales the
encoder that comes first by name, where nobody is ahead and the paper scales none. Its fusion `sum`
has the whole bias in z_m when it trains and half of it when it is judged; here it is always whole.

Needs one class per sample.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from .. import lists
from ..method import (
    Criterion,
    Method,
    confidence,
    refuse_several_labels,
    require_at_least,
    window,
)
from ..model import Multimodal
from ..types import Batch, Data, Output


def ratios(scores: Tensor) -> Tensor:
    """rho [M]: how far each modality is ahead of the others, as the mean of s_m / s_j.

    A modality that has no others is not ahead of them.
    """
    modalities = len(scores)
    scores = scores.clamp_min(1e-8)
    over = scores.unsqueeze(1) / scores
    others = 1 - torch.eye(modalities, dtype=over.dtype, device=over.device)
    return (over * others).sum(dim=1) / max(modalities - 1, 1)


def coefficients(rho: Tensor, alpha: float, *, settle_ties: bool = False) -> Tensor:
    """k [M]. With `settle_ties` the first modality counts as ahead where all are equal."""
    ahead = rho > 1
    if settle_ties:
        ahead[0] |= ~ahead.any() & (rho[0] >= 1)
    return torch.where(ahead, 1 - torch.tanh(alpha * rho), 1.0)


def modulate_(
    gradients: list[Tensor], scale: Tensor, generator: torch.Generator | None = None
) -> None:
    """g <- k g, and with a generator plus noise of g's deviation, in place."""
    for block in lists.blocks(gradients):
        held = gradients[block]
        if generator is None:
            lists.multiply_(held, scale)
            continue
        deviations = [g.std(correction=min(1, g.numel() - 1)) for g in held]  # 0 for one number
        lists.multiply_(held, scale)
        for gradient, deviation in zip(held, deviations, strict=True):
            noise = torch.empty_like(gradient).normal_(generator=generator)
            gradient.addcmul_(noise, deviation)


class OGM(Method):
    """The encoder that is ahead is held back, and gradients are made noisy.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and class ids.
        alpha: how strongly the leader is held back.
        noise: OGM-GE, or without it OGM.
        starts: the first epoch with modulation.
        ends: the last one.
        as_released: 4-D gradients alone, and the first by name is scaled in a tie.
    """

    fusion: ClassVar[str] = "concat"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        alpha: float = 0.8,
        noise: bool = True,
        starts: int = 0,
        ends: int = 50,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        require_at_least("ogm", 0, alpha=alpha)
        refuse_several_labels("ogm", criterion, "it compares probabilities of")
        self.alpha = alpha
        self.noise = noise
        self.window = window("ogm", starts, ends)
        self.as_released = as_released
        self.epoch = 0

    def begin_epoch(self, epoch: int, data: Data) -> None:
        self.epoch = epoch

    @torch.no_grad()
    def modulate(self, output: Output, batch: Batch) -> None:
        if self.epoch not in self.window:
            return
        scores = [confidence(z, batch.target) for z in output.logits.values()]
        rho = ratios(torch.stack(scores))
        scales = coefficients(rho, self.alpha, settle_ties=self.as_released)
        for modality, scale in zip(output.logits, scales, strict=True):
            source = self.generator(f"noise/{modality}", self.device) if self.noise else None
            modulate_(self.modulated(modality), scale, source)

    def modulated(self, modality: str) -> list[Tensor]:
        """The gradients of an encoder that are scaled."""
        parameters = self.model.encoders[modality].parameters()
        gradients = (p.grad for p in parameters if p.grad is not None)
        return [g for g in gradients if (g.ndim == 4 if self.as_released else g.ndim > 1)]

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "epoch": self.epoch}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.epoch = state["epoch"]
