"""`Viewed`: stored samples, and how they become rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..types import Array, Form


class View(Protocol):
    """Makes of one stored sample what the encoder takes. Equal views do the same: a dataclass."""

    @property
    def form(self) -> Form:
        """Of what it makes; mean and scale are part of the view, so they are 0 and 1 there."""
        ...

    def __call__(self, sample: Array, chance: np.random.Generator | None) -> Array:
        """The sample; augmented if there is a chance, and otherwise as it is judged."""
        ...


@dataclass(frozen=True, slots=True)
class Viewed:
    """A `Source` over some rows of what is stored."""

    stored: Sequence[Array]  # a memory-mapped array, or `store.Ragged`
    rows: npt.NDArray[np.int64]  # of `stored`, in the order of the split
    view: View

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Array, draw: int | None) -> Tensor:
        """See `Source.read`."""
        made: list[Array] = []
        for row in rows.tolist():
            chance = None if draw is None else np.random.default_rng((draw, row))
            made.append(self.view(self.stored[int(self.rows[row])], chance))
        return torch.from_numpy(np.stack(made))
