"""DGL: disentangled gradient learning (ICCV 2025).

The gradient that the fused loss sends into an encoder is suppressed by the other modalities. So the
two are taken apart: the fused loss trains the fusion and nothing else, and every encoder learns
from a loss on its own features, which in turn leaves the fusion alone.

| paper                                        | here                                     |
|----------------------------------------------|------------------------------------------|
| CE(f(sg h_1, .., sg h_M), y), trains f       | `fused_logits`, term "fused"             |
| alpha CE(f(0, .., h_m, .., 0), y), trains m  | `lone_logits`, one term per modality     |
| norm of all gradients <= 40                  | `clip`, in `modulate`                    |

sg stops the gradient, and f is the same fusion in both lines. With concat fusion a modality has the
whole bias b in its logits, where the slices that the fusion reports have b / M. Published with
alpha = 4 on SGD 1e-3, batches of 64, 100 epochs, a tenth of the learning rate from epoch 70 on.

Deviations: none is known. What the paper does by dropping gradients after a second backward is done
here in one backward, since the terms touch different parameters. Any number of modalities, any
fusion, and any criterion, also that of several labels. With a single modality the encoder learns
from alpha CE and the fusion from CE.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import Optimizer

from ..fusions.fusion import Features, Fusion, alone
from ..method import Criterion, Method, Terms, require_positive
from ..model import Multimodal
from ..types import Batch, Output


def fused_logits(fusion: Fusion, features: Features) -> Tensor:
    """z, through which no gradient reaches an encoder."""
    return fusion({modality: h.detach() for modality, h in features.items()})[1]


def lone_logits(fusion: Fusion, features: Features) -> dict[str, Tensor]:
    """What the fusion gives for each modality, the others zero. No gradient reaches the fusion."""
    fixed = {name: value.detach() for name, value in fusion.named_parameters()}
    given = {modality: alone(features, modality) for modality in features}
    return {m: functional_call(fusion, fixed, (one,))[1] for m, one in given.items()}


class DGL(Method):
    """Encoders and fusion learn from losses of their own.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and target.
        alpha: the weight of every modality's own loss.
        clip: the largest norm of all gradients together; None leaves them as they are.
    """

    fusion: ClassVar[str] = "concat"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        alpha: float = 4.0,
        clip: float | None = 40.0,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        require_positive("dgl", alpha=alpha, clip=clip)  # at alpha = 0 no encoder would learn
        self.alpha = alpha
        self.clip = clip

    def loss(self, output: Output, batch: Batch) -> Terms:
        fusion, features = self.model.fusion, output.features
        fused = self.criterion(fused_logits(fusion, features), batch.target)
        lone = lone_logits(fusion, features)
        own = {m: self.alpha * self.criterion(z, batch.target) for m, z in lone.items()}
        return {"fused": fused, **own}

    def modulate(self, output: Output, batch: Batch) -> None:
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.clip)
