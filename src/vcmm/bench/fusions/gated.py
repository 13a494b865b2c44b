"""Fusions in which one modality decides what is taken of another.

With y the main modality and x the others:

| fusion | z                                                       |
|--------|---------------------------------------------------------|
| gated  | W_o (prod_x sigmoid(W_x h_x) * (W_y h_y))               |
| film   | W_o (gamma * W_y h_y + beta), [gamma; beta] = sum_x W_x h_x |

With two modalities these are the usual ones; the product and the sum over x are ours. W_y in FiLM
gives h_y the width of gamma, and is there because encoders may differ in width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..by_modality import ByModality
from ..signature import require_positive
from .fusion import Entangled, Features


class Conditioned(Entangled):
    """A main modality, and others that act on it.

    Args:
        widths: of the features.
        classes: the number of outputs.
        main: the modality that is acted on; by default the last one by name.
        width: of the space in which they meet.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int,
        *,
        main: str | None = None,
        width: int = 64,
    ) -> None:
        super().__init__(widths, classes)
        require_positive("fusion", width=width)
        if main is not None and main not in widths:
            raise ValueError(
                f"fusion: main is {main!r}; the modalities are {', '.join(sorted(widths))}"
            )
        self.main = main or max(widths)
        self.inward = ByModality(
            {m: nn.Linear(widths[m], self.inner(m, width)) for m in sorted(widths)}
        )
        self.outward = nn.Linear(width, classes)

    def owned(self, modality: str) -> Iterator[nn.Parameter]:
        yield from self.inward[modality].parameters()

    def fuse(self, features: Features) -> Tensor:
        inner = {m: layer(features[m]) for m, layer in self.inward.items()}
        main = inner.pop(self.main)
        return self.outward(self.act(list(inner.values()), main) if inner else main)

    @abstractmethod
    def inner(self, modality: str, width: int) -> int:
        """How many numbers a modality gives."""

    @abstractmethod
    def act(self, others: list[Tensor], main: Tensor) -> Tensor:
        """The others, there is at least one, act on the main modality."""


class Gated(Conditioned):
    """The others open and close gates for the main modality."""

    def inner(self, modality: str, width: int) -> int:
        return width

    def act(self, others: list[Tensor], main: Tensor) -> Tensor:
        return torch.stack(others).sigmoid().prod(dim=0) * main


class FiLM(Conditioned):
    """The others scale and shift the main modality."""

    linear = True  # with all others at zero, each of them acts linearly

    def inner(self, modality: str, width: int) -> int:
        return width if modality == self.main else 2 * width

    def act(self, others: list[Tensor], main: Tensor) -> Tensor:
        scale, shift = torch.stack(others).sum(dim=0).chunk(2, dim=1)
        return scale * main + shift
