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
        made: Array | None = None  # filled sample by sample, so that no sample is held twice
        for k, row in enumerate(rows.tolist()):
            chance = None if draw is None else np.random.default_rng((draw, row))
            one = self.view(self.stored[int(self.rows[row])], chance)
            if made is None:
                made = np.empty((len(rows), *one.shape), one.dtype)
            if one.shape != made.shape[1:]:
                raise ValueError(
                    f"{self.view} made {one.shape} of row {row} and {made.shape[1:]} of "
                    f"row {int(rows[0])}; samples of a batch have one shape"
                )
            made[k] = one
        if made is None:
            return torch.empty((0, *self.view.form.shape))
        return torch.from_numpy(made)
