"""A head for all features together, and beside it one of its own for every modality.

z = W [h_1; ..; h_M] + b, z_m = W_m h_m + b_m. In `concat` the modalities' logits are slices of W;
here they are classifiers of their own, which nothing but a loss on z_m trains. Methods that weigh
or order by unimodal losses are published on this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..by_modality import ByModality
from .fusion import Features, Fusion, Logits


class Branches(Fusion):
    """The joint head is shared; every other belongs to its modality."""

    linear = True

    def __init__(self, widths: Mapping[str, int], classes: int) -> None:
        super().__init__(widths, classes)
        self.heads = ByModality({m: nn.Linear(widths[m], classes) for m in sorted(widths)})
        self.joint = nn.Linear(sum(widths.values()), classes)

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        logits = {modality: head(features[modality]) for modality, head in self.heads.items()}
        return logits, self.joint(torch.cat([features[modality] for modality in logits], dim=1))

    def owned(self, modality: str) -> Iterator[nn.Parameter]:
        yield from self.heads[modality].parameters()
