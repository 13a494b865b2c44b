"""Fusions that add up linear heads.

| fusion | z                     | z_m               | owner of the head      |
|--------|-----------------------|-------------------|------------------------|
| mean   | mean of z_m           | W_m h_m + b_m     | the modality           |
| sum    | sum of z_m            | W_m h_m + b_m     | the modality           |
| concat | W [h_1; ..; h_M] + b  | W_m h_m + b / M   | nobody: it is shared   |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..by_modality import ByModality
from .fusion import Features, Fusion, Logits


class Mean(Fusion):
    """A linear head per modality; the fused logits are the mean of theirs."""

    linear = True

    def __init__(self, widths: Mapping[str, int], classes: int) -> None:
        super().__init__(widths, classes)
        self.heads = ByModality({m: nn.Linear(widths[m], classes) for m in sorted(widths)})

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        logits = {modality: head(features[modality]) for modality, head in self.heads.items()}
        return logits, torch.stack(list(logits.values())).mean(dim=0)

    def owned(self, modality: str) -> Iterator[nn.Parameter]:
        yield from self.heads[modality].parameters()


class Sum(Mean):
    """A linear head per modality; the fused logits are the sum of theirs."""

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        logits, mean = super().forward(features)
        return logits, mean * len(logits)


class Concat(Fusion):
    """One linear head over all features; its slices give the modalities' logits."""

    linear = True

    def __init__(self, widths: Mapping[str, int], classes: int) -> None:
        super().__init__(widths, classes)
        self.head = nn.Linear(sum(widths.values()), classes)

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        fused = self.head(torch.cat([features[modality] for modality in self.widths], dim=1))
        share = self.head.bias / len(self.widths)
        logits = {
            modality: nn.functional.linear(features[modality], weight, share)
            for modality, weight in self.slices().items()
        }
        return logits, fused

    def slices(self) -> dict[str, Tensor]:
        """W_m [C, D_m] of every modality."""
        parts = torch.split(self.head.weight, list(self.widths.values()), dim=1)
        return dict(zip(self.widths, parts, strict=True))
