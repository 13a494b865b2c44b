"""An additive ensemble: z = b * sum_m z_m, with one two-layer head for all modalities.

b is learned, from 1 on. It is what ReconBoost trains.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .shared import Shared


class Boosted(Shared):
    """A shared head of two layers, and a scale of the sum."""

    def __init__(self, widths: Mapping[str, int], classes: int, *, hidden: int = 256) -> None:
        super().__init__(widths, classes, hidden=hidden)
        self.scale = nn.Parameter(torch.ones(()))

    def fuse(self, logits: Tensor) -> Tensor:
        return self.scale * logits.sum(dim=0)
