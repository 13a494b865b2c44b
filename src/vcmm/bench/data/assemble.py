"""From arrays to `Data`: forms with the statistics of train, and the hash of the contents.

Mean and deviation are those of train alone, per entry of a vector and per channel of a sequence or
an image. They are merged from chunks by the formula of Chan, Golub and LeVeque (1979), which does
not lose digits where the mean is large. An entry that is constant in train is only centred.

The hash covers everything that training can see, and nothing of how it was stored: every split's
names, dtypes, shapes and bytes in little-endian C order, labels, groups and layouts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import Array, Data, Form, Split, SplitName
from .chunks import chunks
from .kinds import Layout, Spelling, layout, shape_of

SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")
# Below this share of the mean, a deviation is what rounding leaves of a constant.
ROUNDING = 1e-12

Moments = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def assemble(
    name: str,
    splits: Mapping[SplitName, Split],
    *,
    labels: tuple[str, ...],
    multilabel: bool = False,
    kinds: Mapping[str, Spelling] | None = None,
    moments: Mapping[str, Moments] | None = None,
    about: str = "",
) -> Data:
    """A data set of these splits, of train at least.

    `moments` are the mean and scale that are already known.
    """
    kinds, moments = kinds or {}, moments or {}
    forms: dict[str, Form] = {}
    for modality in sorted(splits["train"].inputs):
        array = splits["train"].inputs[modality]
        read = layout(f"x_{modality}_train", array, kinds.get(modality))
        mean, scale = moments.get(modality) or standard(array, read)
        forms[modality] = Form(read.kind, shape_of(read, array), read.axis, mean, scale)
    return Data(
        name=name,
        splits={split: splits[split] for split in SPLITS if split in splits},
        forms=forms,
        labels=labels,
        multilabel=multilabel,
        hash=content_hash(splits, forms, labels, multilabel),
        about=about,
    )


def standard(array: Array, layout: Layout) -> Moments:
    """Mean and scale, per entry of a vector or per channel otherwise."""
    axis = array.ndim if layout.axis is None else layout.axis
    count, mean, squares = 0, np.zeros(()), np.zeros(())
    for _, rows in chunks(array):
        values = rows.astype(np.float64)
        values = values[..., None] if layout.axis is None else values
        aside = tuple(other for other in range(values.ndim) if other != axis)
        size = values.size // values.shape[axis]
        here = values.mean(axis=aside)
        delta = here - mean
        squares = (
            squares + values.var(axis=aside) * size + delta**2 * (count * size / (count + size))
        )
        mean = mean + delta * (size / (count + size))
        count += size
    return mean, deviation(mean, squares / count)


def deviation(
    mean: npt.NDArray[np.float64], variance: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """What to divide by: the standard deviation, or 1 for what does not vary."""
    scale = np.sqrt(variance)
    return np.where(scale <= ROUNDING * np.abs(mean), 1.0, scale)


def content_hash(
    splits: Mapping[SplitName, Split],
    forms: Mapping[str, Form],
    labels: tuple[str, ...],
    multilabel: bool,
) -> str:
    """sha256 of all that a run can see, 64 hex digits."""
    digest = hashlib.sha256()

    def say(**values: Any) -> None:
        digest.update(json.dumps(values, sort_keys=True).encode() + b"\n")

    def feed(name: str, array: Array) -> None:
        dtype = array.dtype.newbyteorder("<")
        say(name=name, dtype=dtype.str, shape=array.shape)
        for _, rows in chunks(array):
            digest.update(np.ascontiguousarray(rows, dtype=dtype).data)

    say(labels=labels, multilabel=multilabel)
    for modality in sorted(forms):
        say(modality=modality, kind=forms[modality].kind, axis=forms[modality].axis)
    for name in SPLITS:
        if name not in splits:
            continue
        split = splits[name]
        for modality in sorted(split.inputs):
            feed(f"x_{modality}_{name}", split.inputs[modality])
        feed(f"y_{name}", split.target)
        # As text, for the width of a string array is a matter of storage.
        say(group=None if split.group is None else [str(who) for who in split.group.tolist()])
    return digest.hexdigest()
