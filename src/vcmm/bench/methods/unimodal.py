"""One modality alone: the reference that a multimodal network ought to beat.

L = CE(z_m, y), on a model that has no other modality.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch.nn import functional as F
from torch.optim import Optimizer

from ..method import Criterion, Method
from ..model import Multimodal


class Unimodal(Method):
    """Joint training on a single modality."""

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        modality: str,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        if model.modalities != (modality,):
            raise ValueError(
                f"unimodal training of {modality!r} was given a model of "
                f"{', '.join(model.modalities)}; give it one of {modality!r} alone"
            )

    @classmethod
    def modalities(cls, available: Iterable[str], options: Mapping[str, Any]) -> tuple[str, ...]:
        names, modality = tuple(available), str(options["modality"])
        if modality not in names:
            raise ValueError(f"there is no modality {modality!r}; there are {', '.join(names)}")
        return (modality,)
