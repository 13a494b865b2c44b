"""Branches that are added up, and that can become more. It is what AUG trains.

f_mi = W_o ReLU(U_mi h_m + u_mi) + b_o, z_m = sum_i f_mi, z = mean of z_m. W_o and b_o are shared by
all branches of all modalities; so a modality with n branches has n times b_o.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..by_modality import ByModality
from ..signature import require_positive
from .fusion import Features, Fusion, Logits


class Growing(Fusion):
    """One branch per modality to begin with."""

    def __init__(self, widths: Mapping[str, int], classes: int, *, hidden: int = 256) -> None:
        super().__init__(widths, classes)
        require_positive("growing", hidden=hidden)
        self.branches = ByModality(
            {m: nn.ModuleList([nn.Linear(widths[m], hidden)]) for m in sorted(widths)}
        )
        self.head = nn.Linear(hidden, classes)

    def owned(self, modality: str) -> Iterator[nn.Parameter]:
        yield from self.branches[modality].parameters()

    def size(self, modality: str) -> int:
        """How many branches a modality has."""
        return len(self._of(modality))

    def grow(self, modality: str, generator: torch.Generator) -> nn.Linear:
        """One more branch, drawn from the generator. Somebody has to train it."""
        present = self._of(modality)
        first = present[0]
        assert isinstance(first, nn.Linear)
        branch = copy.deepcopy(first)  # a new layer would draw from torch's own generator
        drawn = nn.init.xavier_normal_(torch.empty(first.weight.shape), generator=generator)
        with torch.no_grad():
            branch.weight.copy_(drawn)
            branch.bias.zero_()
        present.append(branch)
        return branch

    def parts(self, modality: str, features: Tensor) -> list[Tensor]:
        """f_mi of every branch, the newest last."""
        return [self.head(branch(features).relu()) for branch in self._of(modality)]

    def forward(self, features: Features) -> tuple[Logits, Tensor]:
        logits = {m: torch.stack(self.parts(m, features[m])).sum(dim=0) for m in self.branches}
        return logits, torch.stack(list(logits.values())).mean(dim=0)

    def _of(self, modality: str) -> nn.ModuleList:
        branches = self.branches[modality]
        assert isinstance(branches, nn.ModuleList)
        return branches
