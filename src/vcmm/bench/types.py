"""The whole vocabulary of the benchmark on one screen: what is trained on, and what a model gives.

Every dict is keyed by modality. A `Split` holds arrays as they came, memory-mapped or not, or a
`Source` that makes its samples when they are asked for. `Data` turns rows of it into a `Batch`:
arrays become float32, standardized with statistics of train, channels first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]
# [d], [t, c], [h, w, c], [t, h, w, c] and ids of words [t], as they came
Kind = Literal["vector", "sequence", "image", "video", "tokens"]
SplitName = Literal["train", "valid", "test"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples, ready for a model."""

    inputs: dict[str, Tensor]  # [n, d], [n, c, t], [n, c, h, w], [n, c, t, h, w] or words [n, t]
    target: Tensor  # class ids [n], or 0/1 labels [n, C] as floats
    index: Tensor  # [n], their rows in the split

    def to(self, device: torch.device) -> Batch:
        """The same samples on a device. From pinned memory they travel while others compute."""
        return self._each(lambda x: x.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same samples where a GPU can fetch them by itself."""
        return self._each(lambda x: x.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        inputs = {modality: change(x) for modality, x in self.inputs.items()}
        return Batch(inputs, change(self.target), change(self.index))


@dataclass(frozen=True, slots=True)
class Output:
    """What a model makes of a batch."""

    features: dict[str, Tensor]  # h_m [n, D_m]: what the modality's own linear head takes
    logits: dict[str, Tensor]  # z_m [n, C]: what it gives
    fused: Tensor  # z [n, C]


class Source(Protocol):
    """Samples of one modality that are made when they are asked for: read, cropped, augmented."""

    def __len__(self) -> int: ...

    def read(self, rows: Array, draw: int | None) -> Tensor:
        """These rows as the encoder takes them, exactly alike for the same arguments.

        With a `draw` each is augmented, by what the draw and the row alone decide. One draw gives
        all modalities of a row the same randomness, so that crops can agree.
        """
        ...


@dataclass(frozen=True, slots=True)
class Split:
    """The samples of train, valid or test."""

    inputs: Mapping[str, Array]
    target: Array  # class ids [n], or 0/1 labels [n, C]
    group: Array | None = None  # who a sample comes from; no group is in two splits
    sources: Mapping[str, Source] = field(default_factory=dict[str, Source])  # other modalities

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True)
class Form:
    """How a modality's arrays are read: their kind, where channels lie, and how they are scaled."""

    kind: Kind
    shape: tuple[int, ...]  # of one sample as the encoder takes it: (d,), (c, t), (c, h, w), ...
    axis: int | None  # of the channels in an array [n, ...]; None if they must be added
    mean: Floats  # per entry of a vector, per channel of a sequence or an image
    scale: Floats
    words: int | None = None  # of tokens: all ids are below it; None if nobody counted


@dataclass(frozen=True, slots=True)
class Data:
    """A data set: three splits of the same modalities, and all that is known of them."""

    name: str
    splits: Mapping[SplitName, Split]
    forms: Mapping[str, Form]
    labels: tuple[str, ...]  # the names of the classes
    multilabel: bool
    hash: str  # of the contents; the same wherever and however they are stored
    about: str = ""  # where it comes from and how it was split, in a sentence or two

    @property
    def modalities(self) -> tuple[str, ...]:
        """Sorted by name, so that the order in a file changes nothing."""
        return tuple(sorted(self.forms))

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def made(self) -> bool:
        """Whether samples are made when they are asked for, so that it pays to ask ahead."""
        return any(split.sources for split in self.splits.values())

    def rows_within(self, size: int) -> int:
        """How many samples of all modalities fit into so many bytes, one at least."""
        numbers = sum(math.prod(form.shape) for form in self.forms.values())
        return max(1, size // (4 * max(1, numbers)))

    def only(self, *splits: SplitName) -> Data:
        """The same data without the other splits: what a method is given to see."""
        return replace(self, splits={name: self.splits[name] for name in splits})

    def select(self, modalities: Iterable[str]) -> Data:
        """The same samples, but of these modalities alone."""
        chosen = set(modalities)
        for name in chosen - self.forms.keys():
            raise ValueError(
                f"data {self.name!r} has no modality {name!r}; it has {', '.join(self.modalities)}"
            )
        splits = {
            name: replace(
                part,
                inputs={m: x for m, x in part.inputs.items() if m in chosen},
                sources={m: x for m, x in part.sources.items() if m in chosen},
            )
            for name, part in self.splits.items()
        }
        forms = {m: form for m, form in self.forms.items() if m in chosen}
        return replace(self, splits=splits, forms=forms)

    def batch(self, split: SplitName, index: Array | Tensor, draw: int | None = None) -> Batch:
        """These rows of a split; as training sees them in one epoch if a `draw` is given.

        Only a `Source` is augmented, so a draw changes nothing where there is none.
        """
        rows = torch.as_tensor(index, dtype=torch.int64)
        part = self.splits[split]
        where = rows.numpy()
        inputs: dict[str, Tensor] = {}
        for m in self.modalities:
            if m in part.sources:
                inputs[m] = part.sources[m].read(where, draw)
            else:
                inputs[m] = prepared(part.inputs[m][where], self.forms[m])
        target = torch.from_numpy(part.target[where].astype(np.int64, copy=False))
        return Batch(inputs, target.float() if self.multilabel else target, rows)


def prepared(rows: Array, form: Form) -> Tensor:
    """Rows of an array as the encoder takes them."""
    # What float32 cannot hold exactly (time stamps, say) is centred before it is rounded to it.
    exact = np.result_type(rows.dtype, np.float32) == np.float32
    values = rows.astype(np.float32 if exact else np.float64)
    if form.kind != "vector":
        values = values[:, None] if form.axis is None else np.moveaxis(values, form.axis, 1)
    aside = (1,) * (values.ndim - 2)
    mean, scale = (
        part.astype(values.dtype).reshape(-1, *aside) for part in (form.mean, form.scale)
    )
    values = (values - mean) / scale
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
