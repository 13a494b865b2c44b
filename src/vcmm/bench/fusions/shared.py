"""One head for all modalities, which methods that train them in turn ask for.

z_m = f(P_m h_m), z = mean of z_m. P_m is the identity where all features have the same width, and a
linear map to the largest width where they have not. f is linear, or, with `hidden`, two layers with
a ReLU between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..by_modality import ByModality
from ..signature import require_positive
from .fusion import Features, Fusion, Logits


class Shared(Fusion):
    """A head that all modalities go through, one by one; nobody owns it."""

    def __init__(
        self, widths: Mapping[str, int], classes: int, *, hidden: int | None = None
    ) -> None:
        super().__init__(widths, classes)
        widest = max(widths.values())
        same = all(width == widest for width in widths.values())
        self.inward = ByModality(
            {m: nn.Identity() if same else nn.Linear(widths[m], widest) for m in sorted(widths)}
        )
        self.linear = hidden is None
        self.head: nn.Module = nn.Linear(widest, classes)
        if hidden is not None:
            require_positive("fusion", hidden=hidden)
            layers = nn.Linear(widest, hidden), nn.ReLU(), nn.Linear(hidden, classes)
            self.head = nn.Sequential(*layers)

    def owned(self, modality: str) -> Iterator[nn.Parameter]:
        yield from self.inward[modality].parameters()

    def aligned(self, modality: str, features: Tensor) -> Tensor:
        """P_m h_m, as the head takes it."""
        return self.inward[modality](features)

    def logits(self, modality: str, features: Tensor) -> Tensor:
        """z_m."""
        return self.head(self.aligned(modality, features))

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        logits = {modality: self.logits(modality, features[modality]) for modality in self.inward}
        return logits, self.fuse(torch.stack(list(logits.values())))

    def fuse(self, logits: Tensor) -> Tensor:
        """The fused logits of the modalities' [M, n, C]."""
        return logits.mean(dim=0)
