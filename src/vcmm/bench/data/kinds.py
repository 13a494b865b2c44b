"""What an array is: vectors, sequences or images, and where its channels lie.

Read from the shape [n, ...] of an array:

- [n, d] is vectors.
- [n, a, b] is sequences of a steps with b channels, unless it looks like pictures without channels:
  a = b >= 8, or bytes (uint8) with both sides >= 8.
- [n, a, b, c] is images. The channels are the last axis if its size is 1, 3 or 4, or else the first
  after n if its size is. Any other size has to be spelled out.

What this gets wrong is said with the option `kinds`, audio=sequence,video=image-first.
A univariate series [n, t] can be spelled a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from ..types import Array, Kind

Spelling = Literal["vector", "sequence", "image", "image-first", "image-last"]
CHANNELS = (1, 3, 4)
SIDE = 8  # the shortest side of what is taken for a picture


class Layout(NamedTuple):
    """The kind of an array, and its axis of channels; None if they must be added."""

    kind: Kind
    axis: int | None


def layout(name: str, array: Array, spelling: Spelling | None = None) -> Layout:
    """What an array is: as spelled, or else read from its shape."""
    shape = array.shape
    if spelling is None:
        spelling = guessed(name, array)
    elif array.ndim not in RANKS[spelling]:
        raise ValueError(
            f"{name} has shape {shape}; {spelling} needs "
            f"{' or '.join(str(rank) for rank in RANKS[spelling])} axes, with n first"
        )
    if spelling == "vector":
        return Layout("vector", 1)
    if spelling == "sequence":
        return Layout("sequence", 2 if array.ndim == 3 else None)
    if array.ndim == 3:
        return Layout("image", None)
    if spelling != "image":
        return Layout("image", 1 if spelling == "image-first" else 3)
    if shape[3] in CHANNELS or shape[1] in CHANNELS:
        return Layout("image", 3 if shape[3] in CHANNELS else 1)
    modality = name.removeprefix("x_").rpartition("_")[0] or name
    raise ValueError(
        f"{name} has shape {shape}, where neither the last axis nor the one after n is 1, 3 or 4 "
        f"channels; say which it is: kinds={{'{modality}': 'image-last'}} or 'image-first'"
    )


RANKS: Mapping[Spelling, tuple[int, ...]] = {
    "vector": (2,),
    "sequence": (3, 2),
    "image": (4, 3),
    "image-first": (4,),
    "image-last": (4,),
}


def guessed(name: str, array: Array) -> Spelling:
    """The kind that a shape suggests."""
    if array.ndim == 2:
        return "vector"
    if array.ndim == 4:
        return "image"
    if array.ndim == 3:
        sides = array.shape[1:]
        square = sides[0] == sides[1] or array.dtype == np.uint8
        return "image" if square and min(sides) >= SIDE else "sequence"
    raise ValueError(
        f"{name} has shape {array.shape}; it must be [n, d], [n, t, c], [n, h, w], [n, h, w, c] "
        "or [n, c, h, w]"
    )


def shape_of(layout: Layout, array: Array) -> tuple[int, ...]:
    """Of one sample as an encoder takes it: (d,), (c, t) or (c, h, w)."""
    rest = list(array.shape[1:])
    if layout.kind == "vector":
        return tuple(rest)
    channels = 1 if layout.axis is None else rest.pop(layout.axis - 1)
    return (channels, *rest)
