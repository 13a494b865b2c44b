"""What a fusion is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

Features = Mapping[str, Tensor]
Logits = dict[str, Tensor]


class Fusion(nn.Module, ABC):
    """Takes every modality's features, gives every modality's logits and the fused ones.

    Args:
        widths: of the features.
        classes: the number of outputs.

    A subclass is made of the same; its options are keyword-only.
    """

    linear: bool = False  # whether z_m is a linear map of h_m, so that the probe can read it

    def __init__(self, widths: Mapping[str, int], classes: int) -> None:
        super().__init__()
        self.widths = {modality: widths[modality] for modality in sorted(widths)}
        self.classes = classes

    @abstractmethod
    def forward(self, features: Features) -> tuple[Logits, Tensor]: ...

    def owned(self, modality: str) -> Iterator[nn.Parameter]:
        """The parameters that belong to this modality alone."""
        yield from ()


class Entangled(Fusion):
    """A fusion in which no modality has logits of its own.

    Its logits z_m are what it gives when all other features are zero.
    """

    @abstractmethod
    def fuse(self, features: Features) -> Tensor:
        """The fused logits."""

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        logits = {modality: self.fuse(alone(features, modality)) for modality in features}
        return logits, self.fuse(features)


def alone(features: Features, modality: str) -> dict[str, Tensor]:
    """The features with zeros for all modalities but one."""
    return {m: h if m == modality else torch.zeros_like(h) for m, h in features.items()}
